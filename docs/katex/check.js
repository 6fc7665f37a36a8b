// Reads a JSON list of [equation, block] from standard input and writes that of the messages of KaTeX, empty where it has none.
const katex = require(process.argv[2]);
const said = ([tex, block]) => {
  try {
    katex.renderToString(tex, {displayMode: block, throwOnError: true, strict: "error"});
    return "";
  } catch (error) {
    return error.message;
  }
};
let text = "";
process.stdin.on("data", part => text += part).on("end", () => process.stdout.write(JSON.stringify(JSON.parse(text).map(said))));
