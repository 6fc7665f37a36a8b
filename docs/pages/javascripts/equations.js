// Renders every equation of the page in its place, then shows again what the address names.
for (const each of document.querySelectorAll(".arithmatex")) {
  const text = each.textContent, block = text.startsWith("\\[");
  katex.render(text.slice(2, -2), each, {displayMode: block, throwOnError: false});
}
if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
