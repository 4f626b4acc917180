// Draws every figure.chart of the page from the JSON beside its canvas, and draws again when the reader switches between
// light and dark or prints.
(() => {
  'use strict';
  const root = document.documentElement;
  const charts = [];
  const colors = 8;  // in page.css; series beyond them take the same ones again, with other marks and dotted lines
  const legendMark = {area: 'rectRounded', marks: 'rectRot', marked: 'circle'};

  function markOf(series) {
    const mark = legendMark[series.style] ?? 'line';
    return series.color >= colors && mark === 'circle' ? 'triangle' : mark;
  }

  function tick(value, percent) {
    if (percent) return +(100 * value).toPrecision(6) + ' %';
    return Math.abs(value) >= 1e5 ? value.toExponential() : String(+value.toPrecision(6));
  }

  function dataset(series, index, data, color) {
    const pale = color + '55';
    const marks = series.style === 'marked' || series.style === 'marks';
    const again = series.color >= colors;
    return {
      label: series.name,
      data: series.points.map(([x, y]) => ({x, y})),
      borderColor: series.style === 'faint' ? pale : color,
      backgroundColor: series.style === 'area' ? color + 'b8' : series.style === 'faint' ? pale : color,
      borderWidth: series.style === 'faint' || series.style === 'area' ? 1 : 2,
      borderDash: series.style === 'dashed' ? [6, 4] : again ? [2, 3] : [],
      showLine: series.style !== 'marks',
      pointRadius: series.style === 'marks' ? 3 : marks || series.points.length === 1 ? 4 : 0,
      pointHitRadius: 6,
      pointStyle: again ? 'triangle' : series.style === 'marks' ? 'rectRot' : 'circle',
      stepped: data.stacked ? 'before' : false,
      fill: series.style !== 'area' ? false : index === 0 ? 'origin' : '-1',
      order: series.style === 'faint' ? 2 : series.style === 'dashed' ? 0 : 1,
      spanGaps: false,
    };
  }

  function draw() {
    charts.splice(0).forEach(chart => chart.destroy());
    const style = getComputedStyle(root);
    const color = name => style.getPropertyValue(name).trim();
    const soft = color('--soft'), line = color('--line');
    for (const figure of document.querySelectorAll('figure.chart')) {
      const data = JSON.parse(figure.querySelector('script').textContent);
      const axis = (text, more) => ({
        type: 'linear',
        title: {display: true, text, color: soft},
        grid: {color: line, borderColor: line, tickColor: 'transparent'},
        ticks: {color: soft, maxRotation: 0, ...more},
      });
      charts.push(new Chart(figure.querySelector('canvas'), {
        type: 'line',
        data: {datasets: data.series.map((series, i) => dataset(series, i, data, color('--series-' + series.color % colors)))},
        options: {
          animation: false,
          parsing: false,
          normalized: true,
          maintainAspectRatio: false,
          font: {family: getComputedStyle(document.body).fontFamily},
          interaction: {mode: 'nearest', axis: 'x', intersect: false},
          scales: {
            x: {...axis(data.x, {maxTicksLimit: 8}), bounds: 'data'},
            y: {
              ...axis(data.y, {maxTicksLimit: 7, callback: value => tick(value, data.percent)}),
              stacked: data.stacked, beginAtZero: data.from_zero || data.stacked,
              max: data.stacked && data.percent ? 1 : data.y_limit ?? undefined,
            },
          },
          plugins: {
            legend: {position: 'bottom', align: 'start', labels: {
              color: soft, boxWidth: 22, boxHeight: 7, padding: 14, usePointStyle: true,
              generateLabels: chart => Chart.defaults.plugins.legend.labels.generateLabels(chart).map(
                  label => ({...label, pointStyle: markOf(data.series[label.datasetIndex]), lineWidth: 2})),
            }},
            tooltip: {callbacks: {
              title: items => items.length ? data.x + ' ' + items[0].parsed.x : '',
              label: item => item.dataset.label + ': ' + tick(+item.parsed.y.toPrecision(4), data.percent),
            }},
          },
        },
      }));
    }
  }

  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  let opened = [];
  addEventListener('beforeprint', () => {
    root.classList.add('print');
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach(details => { details.open = true; });
    draw();
  });
  addEventListener('afterprint', () => {
    root.classList.remove('print');
    opened.forEach(details => { details.open = false; });
    draw();
  });
})();
