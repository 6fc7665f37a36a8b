// A page of source takes the theme that the reader chose on the other pages, else that of the system.
const root = new URL("..", document.currentScript.src).pathname;
let scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "slate" : "default";
try {
  scheme = JSON.parse(localStorage.getItem(`${root}.__palette`)).color.scheme || scheme;
} catch {}
addEventListener("DOMContentLoaded", () => document.body.setAttribute("data-md-color-scheme", scheme));
