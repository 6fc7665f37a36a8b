// Reads a JSON list of [equation, block] from standard input and writes what is wrong with each, empty where nothing is.
const katex = require(process.argv[2]);
const said = ([tex, block]) => {
  try {
    const drawn = katex.renderToString(tex, {displayMode: block, output: "html", throwOnError: true, strict: "error"});
    return drawn.replace(/<[^>]*>/g, "").includes("\\") ? "a backslash is left in what a reader sees" : "";
  } catch (error) {
    return error.message;
  }
};
let text = "";
process.stdin.on("data", part => text += part).on("end", () => process.stdout.write(JSON.stringify(JSON.parse(text).map(said))));
