// The page of `metavib serve`. Images go to /predict one by one, some at a time; answers become cards.
"use strict";

const AT_ONCE = 4; // requests
const MOST_CARDS = 60; // the oldest go first; the table keeps their rows
const MOST_ROWS = 10_000;
const MOST_BARS = 12; // classes without unfolding
const LEAST_BARS = 3; // however improbable they are; of the others those of 1 % or more
const TRIES = 5; // while the server is busy

const find = (id) => document.getElementById(id);
const waiting = []; // cards whose image was not sent yet
const rows = []; // of the table to download, in the order in which images were given
let running = 0;
let facts = null;
let token = sessionStorage.getItem("metavib-token") || "";

// --- asking ---------------------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw { error: "the server does not answer", what_to_do: "Check that it still runs, then try again." };
  }
  const text = await response.text();
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    said = { error: `the server said something strange (status ${response.status})`, what_to_do: "Try again." };
  }
  if (!response.ok) throw { ...said, status: response.status, retry: Number(response.headers.get("retry-after")) };
  return said;
}

async function classify(file) {
  if (facts && file.size > facts.limits.image_bytes) {
    throw {
      error: `the image has more than ${facts.limits.image_bytes.toLocaleString("en")} bytes`,
      what_to_do: "Make it smaller.",
    };
  }
  const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
  for (let left = TRIES; ; left--) {
    try {
      const said = await ask(`predict?samples=true${facts && facts.examples ? "&nearest=true" : ""}`, { method: "POST", body: file, headers: { "Content-Type": type } });
      return said.predictions[0];
    } catch (problem) {
      if (problem.status !== 503 || left <= 1) throw problem;
      await new Promise((resolve) => setTimeout(resolve, 1000 * (problem.retry || 1)));
    }
  }
}

async function learnFacts() {
  try {
    facts = await ask("model");
  } catch (problem) {
    if (problem.status === 401) askForToken();
    else find("facts").textContent = `${sentence(problem.error)} ${problem.what_to_do}`;
    return false;
  }
  const many = (names) => (names.length > 12 ? `${names.slice(0, 12).join(", ")}, …` : names.join(", "));
  find("facts").textContent =
    `This model knows ${facts.classes.length} classes (${many(facts.classes)}). ` +
    `It learned them from ${many(facts.source_domains)}, ` +
    (facts.unseen_domain === null
      ? "and was tested on nothing else: no domain was held out."
      : `and was tested on ${facts.unseen_domain}, which it had never seen.`);
  // What "sure" is worth is said once, above the answers.
  find("assurance").hidden = facts.assurance === null;
  if (facts.assurance !== null) find("assurance").textContent = `What "sure" is worth: ${facts.assurance}.`;
  find("legend-unsure").textContent =
    facts.assurance === null
      ? `there is more doubt (entropy) than for ${percent(facts.coverage, 0)} of the ${checkedOn()}images from its sources ` +
        "that the model was checked on after training. Such labels are wrong more often."
      : "the probability is lower than it may be for a sure answer, judged by sources that were left out. Such labels are wrong more often.";
  return true;
}

// How many images the threshold of "unsure" rests on, with a space after it; nothing where that is not known.
function checkedOn() {
  return facts && facts.checked_on !== null ? `${facts.checked_on} ` : "";
}

function askForToken() {
  find("token-form").hidden = false;
  find("facts").textContent = "";
  find("token").focus();
  announce("This server asks for a token.");
}

find("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("metavib-token", token);
  find("token").value = "";
  if (await learnFacts()) {
    find("token-form").hidden = true;
    announce("The token is right.");
    find("choose").focus();
    work();
  } else {
    announce("This token is wrong.");
  }
});

// --- images come in -------------------------------------------------------------------------------------------

function take(files) {
  const images = [...files];
  if (!images.length) return;
  find("results").hidden = false;
  const cards = images.map(newCard);
  find("cards").prepend(...cards.map((card) => card.element)); // the newest first, in the order they were given
  waiting.push(...cards);
  rows.push(...cards.map((card) => card.row));
  rows.splice(0, rows.length - MOST_ROWS);
  while (find("cards").children.length > MOST_CARDS) find("cards").lastElementChild.remove();
  announce(images.length === 1 ? "Working on 1 image." : `Working on ${images.length} images.`);
  work();
}

function work() {
  while (running < AT_ONCE && waiting.length && find("token-form").hidden) {
    const card = waiting.shift();
    if (card.row.removed) continue;
    running++;
    classify(card.file)
      .then((prediction) => showPrediction(card, prediction))
      .catch((problem) => {
        if (problem.status === 401) {
          waiting.unshift(card);
          askForToken();
        } else showProblem(card, problem);
      })
      .finally(() => {
        running--;
        work();
      });
  }
}

for (const id of ["choose", "photograph"]) {
  find(id).addEventListener("change", (event) => {
    take(event.target.files);
    event.target.value = ""; // the same file may be chosen again
  });
}
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) {
    event.preventDefault();
    take(event.clipboardData.files);
  }
});
let inside = 0; // dragenter and dragleave come for every element on the way
document.addEventListener("dragenter", () => find("give").classList.toggle("over", ++inside > 0));
document.addEventListener("dragleave", () => find("give").classList.toggle("over", --inside > 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  inside = 0;
  find("give").classList.remove("over");
  take(event.dataTransfer.files);
});
find("clear").addEventListener("click", () => {
  for (const card of [...find("cards").children]) card.querySelector(".remove").click();
  for (const row of rows.splice(0)) row.removed = true;
  find("choose").focus();
  announce("All answers are cleared.");
});

// --- cards ----------------------------------------------------------------------------------------------------

function newCard(file) {
  const element = find("card").content.firstElementChild.cloneNode(true);
  const name = file.name || "pasted image";
  const picture = element.querySelector("img");
  const address = URL.createObjectURL(file);
  element.querySelector("h3").textContent = name;
  element.setAttribute("aria-label", name);
  picture.addEventListener("load", () => {
    picture.classList.toggle("tiny", picture.naturalWidth < 100 && picture.naturalHeight < 100);
    URL.revokeObjectURL(address);
  });
  picture.addEventListener("error", () => {
    picture.replaceWith("no preview");
    URL.revokeObjectURL(address);
  });
  picture.src = address;
  const row = { name };
  const remove = element.querySelector(".remove");
  remove.setAttribute("aria-label", `Remove ${name}`);
  remove.addEventListener("click", () => {
    const next = element.nextElementSibling || element.previousElementSibling;
    element.remove();
    row.removed = true;
    if (rows.includes(row)) rows.splice(rows.indexOf(row), 1);
    if (next) next.querySelector(".remove").focus();
    else {
      find("results").hidden = true;
      find("choose").focus();
    }
  });
  return { element, file, name, row };
}

function showPrediction(card, prediction) {
  const sorted = Object.entries(prediction.probabilities).sort((one, other) => other[1] - one[1]);
  const said = card.element.querySelector(".said");
  card.element.removeAttribute("aria-busy");
  const doubt = prediction.foreign ? "foreign" : prediction.unsure ? "unsure" : "";
  card.element.classList.toggle("unsure", doubt !== "");
  const words = inWords(prediction, sorted);
  Object.assign(card.row, { prediction, sorted, words });
  said.replaceChildren(make("p", "label", words), judgement(...certainty(prediction)));
  if (!prediction.foreign && prediction.nearest && prediction.nearest.length) said.append(examples(prediction));
  const shown = Math.min(MOST_BARS, Math.max(LEAST_BARS, sorted.filter(([, probability]) => probability >= 0.01).length));
  said.append(bars(sorted.slice(0, shown), prediction, "Probability of each class"));
  if (sorted.length > shown) {
    const rest = make("details");
    const others = sorted.length - shown;
    rest.append(make("summary", "", others === 1 ? "The other class" : `The other ${others} classes`));
    rest.append(bars(sorted.slice(shown), prediction, "Probability of the other classes"));
    said.append(rest);
  }
  said.append(...nearest(prediction), numbers(prediction, sorted.length));
  announce(`${card.name}: ${words}.`);
}

// As serving/words.py says it.
function inWords(prediction, sorted) {
  if (prediction.foreign) return "unlike anything it was trained on";
  const [[label, probability], second] = sorted;
  if (!prediction.unsure) return `${label}, ${wholePercent(probability)}\u00a0%`;
  if (second && second[1] > 0 && second[1] >= probability / 2) return `not sure: ${label} or ${second[0]}`;
  return `not sure: perhaps ${label}`;
}

function wholePercent(probability) {
  const rounded = Math.round(100 * probability);
  return probability < 1 ? Math.min(rounded, 99) : rounded;
}

// Training images of the answer's class that are most like this one, where the model keeps some.
function examples(prediction) {
  const element = make("figure", "examples");
  element.append(make("figcaption", "quiet", `Most like it, of ${prediction.label} in training:`));
  const row = make("p", "row");
  for (const one of prediction.nearest) {
    const picture = make("img");
    picture.src = one.image;
    picture.alt = `a training image of ${one.label}`;
    row.append(picture);
  }
  element.append(row);
  return element;
}

function certainty(prediction) {
  if (prediction.foreign) {
    return ["Foreign", `This image is like nothing that the model knows. Its best guess, ${prediction.label}, means little.`];
  }
  if (facts && facts.assurance !== null) {
    return prediction.unsure ? ["Unsure", "Do not rely on this label: let a person look."] : ["", "Sure enough."];
  }
  if (prediction.unsure === null) return ["", "This model does not say when it is unsure: it was saved without that."];
  const usual = `${facts ? percent(facts.coverage, 0) : "most"} of the ${checkedOn()}images that the model was checked on.`;
  if (!prediction.unsure) return ["", `Sure enough: no more doubt than for ${usual}`];
  return ["Unsure", `Do not rely on this label: there is more doubt than for ${usual}`];
}

function showProblem(card, problem) {
  card.element.removeAttribute("aria-busy");
  card.element.classList.add("failed");
  const text = sentence(String(problem.error || "something went wrong").replace(/^image 1:? /, "This image "));
  card.element.querySelector(".said").replaceChildren(judgement("No answer", `${text} ${problem.what_to_do || ""}`));
  card.row.problem = text;
  announce(`${card.name}: no answer. ${text}`);
}

// --- the table ------------------------------------------------------------------------------------------------

find("table").addEventListener("click", () => {
  const header = ["image", "answer", "label", "probability", "second label", "second probability", "unsure", "foreign", "problem"];
  const lines = rows.filter((row) => row.prediction || row.problem).map(cells);
  const text = [header, ...lines].map((line) => line.map(csvCell).join(",")).join("\r\n");
  const address = URL.createObjectURL(new Blob(["\ufeff", text, "\r\n"], { type: "text/csv" }));
  const link = make("a");
  link.href = address;
  link.download = "answers.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
  announce(lines.length === 1 ? "A table of 1 image is saved." : `A table of ${lines.length} images is saved.`);
});

function cells(row) {
  if (!row.prediction) return [row.name, "", "", "", "", "", "", "", row.problem];
  const { label, probability, unsure, foreign } = row.prediction;
  const [second, secondProbability] = row.sorted[1] || ["", null];
  const share = (value) => (value === null ? "" : value.toFixed(4));
  const flag = (value) => (value === null || value === undefined ? "" : String(value));
  return [row.name, row.words, label, share(probability), second, share(secondProbability), flag(unsure), flag(foreign), ""];
}

// As core/foreign_text.py: a name that a spreadsheet would compute has an apostrophe before it.
const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

function csvCell(given) {
  const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const guard = FORMULA.test(given) && !NUMBER.test(given) ? "'" : "";
  const text = guard + given.toWellFormed().replace(UNSEEN, escaped);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function judgement(title, text) {
  const element = make("p", "judgement");
  if (title) element.append(make("b", "", title));
  element.append(text);
  return element;
}

function bars(entries, prediction, title) {
  const table = make("table");
  const drawn = prediction.classifiers || [];
  table.append(make("caption", "unseen", drawn.length ? `${title}, and its range over ${drawn.length} classifiers` : title));
  for (const [name, probability] of entries) {
    const row = table.insertRow();
    row.className = name === prediction.label ? "first" : "";
    const head = make("th", "", name);
    head.scope = "row";
    head.title = name;
    const bar = make("span", "bar");
    bar.setAttribute("aria-hidden", "true");
    bar.append(part("i", 0, probability));
    const cell = make("td", "drawn");
    cell.append(bar);
    const value = make("td", "value", percent(probability));
    if (drawn.length) {
      const all = drawn.map((one) => one[name]);
      const [low, high] = [Math.min(...all), Math.max(...all)];
      bar.append(part("s", low, high));
      bar.title = `${percent(low)} to ${percent(high)}`;
      value.append(make("span", "unseen", `, from ${percent(low)} to ${percent(high)}`));
    }
    row.append(head, cell, value);
  }
  return table;
}

function part(kind, from, to) {
  const element = make(kind);
  element.style.left = `${100 * from}%`;
  element.style.width = `${100 * (to - from)}%`;
  return element;
}

function nearest(prediction) {
  const sorted = Object.entries(prediction.distances).sort((one, other) => one[1] - other[1]);
  if (!sorted.length) return [];
  const named = sorted.slice(0, 3).map(([name, distance]) => `${name} (${distance.toFixed(1)}\u00a0×)`);
  const text = make("p", "near");
  text.append(make("span", "quiet", "Nearest class means: "), named.join(", "), make("span", "quiet", " the usual distance."));
  return [text];
}

function numbers(prediction, classes) {
  const element = make("details");
  element.append(make("summary", "", "Numbers"));
  const list = make("dl", "facts");
  const add = (name, text) => list.append(make("dt", "", name), make("dd", "", text));
  const threshold = facts ? facts.thresholds[facts.modes[0]] : null;
  add("Entropy, in nats", prediction.entropy.toFixed(3));
  add("from disagreeing classifiers", prediction.model_entropy.toFixed(3));
  if (threshold !== null) add("unsure above", threshold.toFixed(3));
  if (facts && facts.least_confidence !== null) add("unsure below a probability of", facts.least_confidence.toFixed(3));
  if (prediction.labels) add("Set of labels", prediction.labels.join(", "));
  add("no idea at all", Math.log(classes).toFixed(3));
  for (const [name, distance] of Object.entries(prediction.distances)) add(`Distance to ${name}`, distance.toFixed(2));
  element.append(list);
  return element;
}

// --- small things ---------------------------------------------------------------------------------------------

function make(kind, className = "", text = "") {
  const element = document.createElement(kind);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function percent(share, digits = 1) {
  const value = 100 * share;
  if (digits && value > 99.9 && value < 100) return "> 99.9\u00a0%";
  if (digits && value > 0 && value < 0.1) return "< 0.1\u00a0%";
  return `${value.toFixed(digits)}\u00a0%`; // never at the end of a line alone
}

function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

let spoken = [];
function announce(text) {
  // Said together: a screen reader would drop all but the last of several that come at once.
  spoken.push(text);
  if (spoken.length > 1) return;
  setTimeout(() => {
    find("status").textContent = spoken.slice(-8).join(" ");
    spoken = [];
  }, 150);
}

learnFacts();
