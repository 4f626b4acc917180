// Draws every figure.chart of the page from the JSON beside its canvas, and draws again when the reader switches between
// light and dark or prints. A range is chosen by dragging over a chart, or with the keyboard; charts over the same
// axis show the same range.
(() => {
  'use strict';
  const root = document.documentElement;
  const colors = 8;  // in page.css; beyond them they come again, dashed and with other marks
  const marks = ['circle', 'triangle', 'rect', 'rectRot', 'star', 'cross', 'crossRot'];
  const marksPerLine = 9;
  const smallestDrag = 8;  // pixels
  const charts = [];
  const ranges = {};  // that are chosen, by the name of the axis

  // As all numbers of the pages are written: 1,000; 0.0012; 1.2e-7.
  function tick(value, percent) {
    if (percent) return +(100 * value).toPrecision(6) + ' %';
    const rounded = +value.toPrecision(6), size = Math.abs(rounded);
    if (size >= 1e15) return rounded.toExponential();
    return size >= 1000 ? rounded.toLocaleString('en-US') : String(rounded);
  }

  // At most eight, at round numbers.
  function roundTicks(low, high, isWhole) {
    const rough = (high - low) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(isWhole ? 1 : 0, power * [1, 2, 5, 10].find(factor => rough <= factor * power * (1 + 1e-9)));
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({length: last - first + 1}, (_, i) => ({value: +((first + i) * step).toPrecision(12)}));
  }

  // A line's marks, evenly over what is shown of the axis, and not where those of the other lines are.
  function spaced(points, [low, high], index, lines) {
    const radii = points.map(() => 0);
    for (let i = 0, next = 0; i < marksPerLine; ++i) {
      const at = low + (high - low) * (i + index / lines) / marksPerLine;
      while (next < points.length && points[next][0] < at) ++next;
      if (next < points.length && points[next][0] <= high) radii[next] = 4;
    }
    return radii;
  }

  function dataset(series, index, data, color, faint) {
    const pale = color + faint;
    const again = series.color >= colors;
    const count = series.points.length;
    const hasMarks = series.style === 'marks' || series.style === 'marked' || series.style === 'spaced';
    return {
      label: series.name,
      data: series.points.map(([x, y]) => ({x, y})),
      borderColor: series.style === 'faint' ? pale : color,
      backgroundColor: series.style === 'area' ? color + 'b8' : series.style === 'faint' ? pale : color,
      borderWidth: series.style === 'faint' || series.style === 'area' ? 1 : 2,
      borderDash: series.style === 'dashed' ? [6, 4] : again ? [5, 3] : [],
      showLine: series.style !== 'marks',
      pointRadius: series.style === 'spaced' ? spaced(series.points, shown(data), index, data.series.length) : hasMarks || count === 1 ? 4 : 0,
      pointHitRadius: 6,
      pointStyle: hasMarks ? marks[series.color % marks.length] : series.style === 'area' ? 'rectRounded' : 'line',
      pointBorderWidth: 2,
      stepped: data.stacked ? 'before' : false,
      fill: series.style !== 'area' ? false : index === 0 ? 'origin' : '-1',
      order: series.style === 'faint' ? 2 : series.style === 'dashed' ? 0 : 1,
      spanGaps: false,
    };
  }

  // A line and a mark as the chart draws them, for its legend.
  function sample(series) {
    const canvas = document.createElement('canvas'), ctx = canvas.getContext('2d');
    [canvas.width, canvas.height] = [26, 14];
    ctx.strokeStyle = series.borderColor;
    ctx.fillStyle = series.backgroundColor;
    ctx.lineWidth = 2;
    if (series.showLine && !series.fill) {
      ctx.setLineDash(series.borderDash);
      ctx.beginPath();
      ctx.moveTo(0, 7);
      ctx.lineTo(26, 7);
      ctx.stroke();
      ctx.setLineDash([]);
    }
    if (series.pointStyle !== 'line') {
      Chart.helpers.drawPoint(ctx, {pointStyle: series.pointStyle, radius: 4, borderWidth: 2, rotation: 0}, 13, 7);
    }
    return canvas;
  }

  // The names of marks beside them, each where it covers no other one.
  const names = {
    id: 'names',
    afterDatasetsDraw(chart) {
      if (!chart.data.source.named) return;
      const {ctx, chartArea: area} = chart;
      const taken = chart.data.datasets.flatMap((_, i) => chart.getDatasetMeta(i).data.map(
          ({x, y}) => ({left: x - 5, right: x + 5, top: y - 5, bottom: y + 5})));
      ctx.save();
      ctx.font = '12px ' + Chart.defaults.font.family;
      ctx.textBaseline = 'middle';
      chart.data.datasets.forEach((series, i) => {
        const point = chart.getDatasetMeta(i).data[0];
        if (!point || chart.getDatasetMeta(i).hidden) return;
        const width = ctx.measureText(series.label).width;
        const places = [0, -14, 14, -28, 28].flatMap(dy => [9, -9 - width].map(dx => ({dx, dy}))).map(({dx, dy}) => (
            {left: point.x + dx, right: point.x + dx + width, top: point.y + dy - 7, bottom: point.y + dy + 7}));
        const free = places.find(box => box.left > area.left && box.right < area.right && box.top > area.top &&
                                        box.bottom < area.bottom &&
                                        taken.every(other => box.right < other.left || box.left > other.right ||
                                                             box.bottom < other.top || box.top > other.bottom));
        if (!free) return;  // the legend has it
        taken.push(free);
        ctx.fillStyle = series.borderColor;
        ctx.fillText(series.label, free.left, (free.top + free.bottom) / 2);
      });
      ctx.restore();
    },
  };

  // What is being chosen by dragging.
  const selection = {
    id: 'selection',
    afterDraw(chart) {
      if (!chart.drag) return;
      const {ctx, chartArea: area, drag} = chart;
      ctx.save();
      ctx.fillStyle = getComputedStyle(root).getPropertyValue('--accent').trim() + '33';
      ctx.fillRect(Math.min(drag.from, drag.to), area.top, Math.abs(drag.to - drag.from), area.bottom - area.top);
      ctx.restore();
    },
  };

  function applyRange(chart) {
    const {source: data, datasets} = chart.data, range = ranges[data.x], {x, y} = chart.options.scales;
    [x.min, x.max] = shown(data);
    y.max = yLimit(data);
    data.series.forEach(({style, points}, i) => {
      if (style === 'spaced') datasets[i].pointRadius = spaced(points, shown(data), i, data.series.length);
    });
    chart.canvas.closest('figure').querySelector('.whole-range').hidden = !range;
  }

  // A limit keeps one far point from flattening all others; who looks closer sees it.
  function yLimit(data) {
    return data.stacked && data.percent ? 1 : ranges[data.x] ? undefined : data.y_limit ?? undefined;
  }

  // From zero where the points begin close to it; names have room at both sides.
  function extent(data) {
    const all = data.series.flatMap(series => series.points.map(([x]) => x));
    const [low, high] = all.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
    const margin = data.named || low === high ? 0.1 * (high - low || Math.abs(high) || 1) : 0;
    return [low > 0 && low < 0.05 * high ? 0 : low - margin, high + margin];
  }

  const shown = data => ranges[data.x] ?? extent(data);

  // `range` is none for all that there is.
  function show(axis, range) {
    ranges[axis] = range;
    for (const chart of charts.filter(one => one.data.source.x === axis)) {
      applyRange(chart);
      chart.update('none');
    }
  }

  // Scales what is shown by `factor`, and moves it by `move` of its width, as far as there are points.
  function change(chart, factor, move) {
    const [low, high] = extent(chart.data.source), [from, to] = shown(chart.data.source);
    const width = Math.min((to - from) * factor, high - low);
    const center = (from + to) / 2 + move * width;
    const begin = Math.min(Math.max(center - width / 2, low), high - width);
    show(chart.data.source.x, width >= high - low ? undefined : [begin, begin + width]);
  }

  const keys = {
    '+': chart => change(chart, 0.5, 0), '=': chart => change(chart, 0.5, 0), '-': chart => change(chart, 2, 0),
    'ArrowLeft': chart => change(chart, 1, -0.25), 'ArrowRight': chart => change(chart, 1, 0.25),
    'Escape': chart => show(chart.data.source.x), '0': chart => show(chart.data.source.x),
  };

  function listen(canvas) {
    const chart = () => Chart.getChart(canvas);
    const within = (value, area) => Math.min(Math.max(value, area.left), area.right);
    canvas.addEventListener('pointerdown', event => {
      const {left, right, top, bottom} = chart().chartArea, {offsetX: x, offsetY: y} = event;
      if (event.button !== 0 || x < left || x > right || y < top || y > bottom) return;
      canvas.setPointerCapture(event.pointerId);
      chart().drag = {from: x, to: x};
    });
    canvas.addEventListener('pointermove', event => {
      if (!chart().drag) return;
      chart().drag.to = within(event.offsetX, chart().chartArea);
      chart().draw();
    });
    canvas.addEventListener('pointerup', () => {
      const one = chart(), drag = one.drag;
      one.drag = undefined;
      if (!drag) return;
      if (Math.abs(drag.to - drag.from) < smallestDrag) return one.draw();
      show(one.data.source.x, [drag.from, drag.to].map(x => one.scales.x.getValueForPixel(x)).sort((a, b) => a - b));
    });
    canvas.addEventListener('pointercancel', () => {
      chart().drag = undefined;
      chart().draw();
    });
    canvas.addEventListener('dblclick', () => show(chart().data.source.x));
    canvas.addEventListener('keydown', event => {
      if (event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
      keys[event.key](chart());
      event.preventDefault();
    });
    canvas.closest('figure').querySelector('.whole-range').addEventListener('click', () => {
      show(chart().data.source.x);
      canvas.focus();
    });
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
      const [min, max] = shown(data);
      charts.push(new Chart(figure.querySelector('canvas'), {
        type: 'line',
        data: {
          source: data,
          datasets: data.series.map((series, i) => dataset(series, i, data, color('--series-' + series.color % colors), color('--faint'))),
        },
        plugins: [names, selection],
        options: {
          animation: false,
          parsing: false,
          normalized: true,
          maintainAspectRatio: false,
          font: {family: getComputedStyle(document.body).fontFamily},
          interaction: {mode: 'nearest', axis: 'x', intersect: false},
          scales: {
            x: {
              ...axis(data.x, {callback: value => tick(value)}), min, max, bounds: 'data',
              afterBuildTicks: scale => { scale.ticks = roundTicks(scale.min, scale.max, data.x === 'step'); },
            },
            y: {
              ...axis(data.y, {maxTicksLimit: 7, callback: value => tick(value, data.percent)}),
              stacked: data.stacked, beginAtZero: data.from_zero || data.stacked, max: yLimit(data),
            },
          },
          plugins: {
            legend: {position: 'bottom', align: 'start', labels: {
              color: soft, boxHeight: 12, padding: 12, usePointStyle: true, pointStyleWidth: 32,
              generateLabels: chart => Chart.defaults.plugins.legend.labels.generateLabels(chart).map(
                  label => ({...label, pointStyle: sample(chart.data.datasets[label.datasetIndex])})),
            }},
            tooltip: {callbacks: {
              title: items => items.length ? data.x + ' ' + tick(items[0].parsed.x) : '',
              label: item => item.dataset.label + ': ' + tick(+item.parsed.y.toPrecision(4), data.percent),
            }},
          },
        },
      }));
    }
  }

  if (window.Chart) {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    draw();
    document.querySelectorAll('figure.chart canvas').forEach(listen);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  }
  let opened = [];
  addEventListener('beforeprint', () => {
    root.classList.add('print');
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach(details => { details.open = true; });
    if (window.Chart) draw();
  });
  addEventListener('afterprint', () => {
    root.classList.remove('print');
    opened.forEach(details => { details.open = false; });
    if (window.Chart) draw();
  });
})();
