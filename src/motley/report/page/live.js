// Keeps a page of a service up to date: fetches it again every few seconds and puts its parts in the place of those that
// are shown, so that the reader stays where he is. Says so where the service does not answer.
(() => {
  'use strict';
  const everySeconds = 5, answerSeconds = 20;
  let answered = new Date();

  function say(text) {
    const note = document.querySelector('.stale');
    note.hidden = !text;
    note.querySelector('span').textContent = text;
  }

  function put(page) {
    const focused = document.activeElement?.getAttribute('href');
    for (const part of ['header', 'main']) document.querySelector(part).replaceWith(page.querySelector(part));
    if (focused) document.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    document.title = page.title;
  }

  async function update() {
    if (document.hidden || !getSelection().isCollapsed) return;
    try {
      const answer = await fetch(location.href, {cache: 'no-store', signal: AbortSignal.timeout(1000 * answerSeconds)});
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      put(new DOMParser().parseFromString(await answer.text(), 'text/html'));
      answered = new Date();
      say('');
    } catch (problem) {
      say(`no answer since ${answered.toLocaleTimeString()} (${problem.message}); trying again. What is below is of then.`);
    }
  }

  async function repeat() {
    await update();
    setTimeout(repeat, 1000 * everySeconds);
  }
  setTimeout(repeat, 1000 * everySeconds);
  document.addEventListener('visibilitychange', update);
})();
