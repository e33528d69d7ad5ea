// Colours for code: comments, strings, numbers and keywords, found by one pattern for each family of languages. What is
// not closed goes to the end of the text, so that no pattern looks at the same text again and again.

const C_LIKE = "abstract|as|async|auto|await|bool|boolean|break|case|catch|char|class|const|continue|debugger|default|defer|delete|do|double|else|enum|export|extends|extern|false|final|finally|float|fn|for|from|func|function|go|goto|if|impl|implements|import|in|inline|instanceof|int|interface|let|long|match|mod|module|mut|namespace|new|nil|null|nullptr|of|operator|override|package|private|protected|pub|public|return|self|short|signed|sizeof|static|struct|super|switch|template|this|throw|throws|trait|true|try|type|typedef|typename|typeof|undefined|union|unsafe|unsigned|use|using|val|var|virtual|void|volatile|where|while|with|yield";
const PYTHON = "False|None|True|and|as|assert|async|await|break|case|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|self|try|while|with|yield";
const SHELL = "case|do|done|elif|else|esac|exit|export|fi|for|function|if|in|local|return|set|then|until|while";
const SQL = "add|all|alter|and|as|asc|between|by|case|create|cross|delete|desc|distinct|drop|else|end|exists|from|full|group|having|if|in|index|inner|insert|into|is|join|key|left|like|limit|not|null|offset|on|or|order|outer|primary|references|right|select|set|table|then|union|unique|update|values|view|when|where|with";

const STRING = String.raw`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`;
const NUMBER = String.raw`\b(?:0x[\da-f]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b`;

function pattern(comment, string, keywords, flags = "g") {
  return new RegExp(`(?<comment>${comment})|(?<string>${string})|(?<number>${NUMBER})|(?<keyword>\\b(?:${keywords})\\b)|(?<name>\\b[A-Za-z_]\\w*(?=\\())`, flags);
}

const c = pattern(String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`, `${STRING}|\`(?:\\\\.|[^\`\\\\])*\``, C_LIKE);
const python = pattern("#[^\\n]*", `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${STRING}`, PYTHON);
const shell = pattern("(?<![^\\s])#[^\\n]*", STRING, SHELL);
const sql = pattern(String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, STRING, SQL, "gi");
const data = pattern("(?!)", STRING, "true|false|null");
const markup = new RegExp(String.raw`(?<comment><!--[^]*?(?:-->|$))|(?<string>"[^"\n]*"|'[^'\n]*')|(?<keyword><\/?[\w:-]+|\/?>)`, "g");

const FAMILIES = new Map([
  ...["js", "javascript", "ts", "typescript", "jsx", "tsx", "java", "c", "cpp", "c++", "cs", "c#", "csharp", "go", "rust", "rs", "swift", "kotlin", "php", "scala", "dart", "css", "scss", "zig"].map((name) => [name, c]),
  ...["py", "python", "python3", "ruby", "rb", "toml", "yaml", "yml", "r", "julia"].map((name) => [name, python]),
  ...["sh", "bash", "shell", "zsh", "console", "dockerfile", "makefile"].map((name) => [name, shell]),
  ["sql", sql],
  ...["json", "jsonc", "json5"].map((name) => [name, data]),
  ...["html", "xml", "svg", "vue"].map((name) => [name, markup]),
]);

/** @returns {DocumentFragment} the text, with spans of the classes comment, string, number, keyword and name */
export function paint(text, language) {
  const root = document.createDocumentFragment();
  const family = FAMILIES.get(language.toLowerCase());
  let from = 0;
  for (const match of family ? text.matchAll(family) : []) {
    if (match.index > from) root.append(text.slice(from, match.index));
    const span = document.createElement("span");
    span.className = `tok-${Object.keys(match.groups).find((kind) => match.groups[kind] !== undefined)}`;
    span.textContent = match[0];
    root.append(span);
    from = match.index + match[0].length;
  }
  root.append(text.slice(from));
  return root;
}
