// What is wrong with the page that is open, as lines; called with its width (wide, narrow) and its theme's scheme.
async ([width, scheme]) => {
  const frame = () => new Promise(requestAnimationFrame), late = new Promise(done => setTimeout(done, 3000));
  await frame(), await frame();  // what a change of size or theme sets in motion must have come to rest
  await Promise.race([late, Promise.allSettled(document.getAnimations().map(each => each.finished))]);
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth + 1) {
    const wide = [...document.querySelectorAll('.md-content *')].filter(e => e.getBoundingClientRect().right > root.clientWidth + 1
      && ![...function*(p) { for (; p; p = p.parentElement) yield p }(e.parentElement)].some(p => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX) && p !== document.body && p !== root));
    wrong.push(`${root.scrollWidth} wide in a window of ${root.clientWidth}: ${wide.slice(0, 3).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)).join('; ')}`);
  }
  const article = document.querySelector('article');
  if (!article) return ['there is no article'];
  const words = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  for (let node; (node = words.nextNode());) {
    const inside = node.parentElement.closest('pre, code, .lines, script, style, svg, annotation');
    if (!inside && /\\[([_]|\$\$|\\[a-z]{3,}\b|\$[^$ ][^$]*\$/.test(node.textContent)) wrong.push(`equation not rendered: ${node.textContent.trim().slice(0, 80)}`);
  }
  for (const math of article.querySelectorAll('.arithmatex')) {
    if (math.closest('details:not([open])')) continue;
    const drawn = math.querySelector('.katex-html'), words = math.textContent.slice(0, 80);
    if (!drawn || math.querySelector('.katex-error') || drawn.getBoundingClientRect().height < 4) { wrong.push(`equation not rendered: ${words}`); continue; }
    const block = math.closest('.equation');
    if (block && math.scrollWidth > math.clientWidth + 1 && getComputedStyle(math).overflowX !== 'auto') wrong.push(`equation cut: ${words}`);
  }
  for (const code of article.querySelectorAll('pre > code, ol.lines')) {
    if (code.clientWidth && code.scrollWidth > code.clientWidth + 1) wrong.push(`code is cut: ${code.textContent.trim().slice(0, 60)}`);
  }
  const listed = new Set([...document.querySelectorAll('.md-nav a')].map(link => link.getAttribute('href')));
  for (const clause of article.querySelectorAll('.clause')) {
    const head = clause.previousElementSibling;
    if (head?.id && !listed.has('#' + head.id)) wrong.push('not in the navigation: ' + head.id);
    const left = clause.querySelector(':scope > .contract'), right = clause.querySelector(':scope > .beside');
    if (!left || !right) { wrong.push('a clause without its two sides: ' + clause.textContent.slice(0, 40)); continue; }
    if (!right.children.length) continue;
    const a = left.getBoundingClientRect(), b = right.getBoundingClientRect();
    const beside = b.left >= a.right - 1 && Math.abs(a.top - b.top) < 2, below = b.top >= a.bottom - 1;
    const side = width === 'wide' && !clause.matches('.whole');
    if (side ? !beside : !below) wrong.push(`not ${side ? 'beside' : 'below'}: ${left.textContent.trim().slice(0, 60)}`);
  }
  if (document.body.getAttribute('data-md-color-scheme') !== scheme) wrong.push(`the theme is ${document.body.getAttribute('data-md-color-scheme')}, not ${scheme}`);
  const light = c => { const v = c.match(/[\d.]+/g).map(Number); return (v[0] * 299 + v[1] * 587 + v[2] * 114) / 1000 };
  const page = light(getComputedStyle(document.body).backgroundColor), text = light(getComputedStyle(article).color);
  if (Math.abs(page - text) < 100) wrong.push(`text (${text}) does not stand out from the page (${page})`);
  if (article.querySelector('.highlight:not(.source) pre > code') && !document.querySelector('.md-clipboard, .md-code__button')) wrong.push('no copy button');
  return wrong;
}
