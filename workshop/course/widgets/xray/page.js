// The cursor, the questions, keys and clicks; inside of a notebook its theme, its kernel, and a trace that grows.

const $ = id => document.getElementById(id), press = act => document.querySelector(`[data-go=${act}]`);
let at = 0, only = null, timer = null;
let asked = null, chosen = null, right = 0, answered = 0;   // the step that is asked about, the option taken, the score
const hidden = () => asked === null ? Infinity : chosen === null ? asked : asked + 1;    // from here nothing is shown

function go(to) {
  if (to >= hidden()) ask();
  else at = Math.max(0, Math.min(last(), to));
  draw();
}

function play(on) {
  clearInterval(timer);
  const step = () => at < Math.min(last(), hidden() - 1) ? go(at + 1) : play(false);
  timer = on ? setInterval(step, 1000 / $("speed").value) : null;
  press("play").setAttribute("aria-pressed", !!timer);
  press("play").textContent = timer ? "pause" : "play";
  $("said").setAttribute("aria-live", timer ? "off" : "polite");
}

function view() {                                       // the steps in the picture: the cursor in its last third
  const columns = Math.max(8, Math.floor(($("steps").clientWidth - 42) / 17));
  const from = Math.max(0, Math.min(at - Math.round(columns * 0.62), x.steps.length - columns));
  return {from, to: Math.min(x.steps.length, from + columns), end: hidden(), columns, cursor: at, only, fades: true};
}

function draw() {
  if (!x.steps.length) return void ($("said").textContent = "No step to show yet.");
  const step = x.steps[at], tile = (big, what) => `<div><b>${big}</b>${what}</div>`;
  Object.assign($("slider"), {max: last(), value: at});
  Object.assign($("jump"), {min: nr(0), max: nr(last()), value: nr(at)});
  $("slider").setAttribute("aria-valuetext", `step ${nr(at)} of ${nr(last())}`);
  $("tiles").innerHTML = tile(`${nr(at)} <small>of ${nr(last())}</small>`, "step") + tile(`${step.t.toFixed(3)} s`, "on the clock")
    + tile(step.took ? ms(step.took) : "–", "this step took") + tile(step.rows.length, step.rows.length === 1 ? "request in it" : "requests in it")
    + tile(percent(step.usage), "of the KV cache");
  $("said").innerHTML = (step.said.length ? step.said : ["Nothing runs."]).map(said => `<p>${safe(said)}</p>`).join("");
  band($("steps"), view());
  drawBudget($("budget"), $("budget-says"), at, only);
  drawPool($("pool"), $("pool-says"), at, only);
  if (frame) frame.style.height = `${document.body.scrollHeight + 4}px`;
}

function head() {
  $("about").textContent = x.about;
  $("drafts").hidden = !x.steps.some(step => step.rows.some(row => row.drafted));
  $("names").innerHTML = x.names.slice(0, 300).map(([short, id]) => `<b>${short}</b> ${safe(id)}`).join(" · ")
    + (x.names.length > 300 ? " …" : "");
}

function ask() {                                        // the next question after the cursor
  const from = asked === null ? at : asked;
  const next = x.steps.findIndex((step, s) => s > from && step.question);
  asked = next < 0 ? null : next;
  chosen = null;
  if (asked !== null) at = asked - 1;
  card();
}

function card() {
  const place = $("card"), score = `<small>${right} of ${answered} right</small>`;
  place.hidden = press("predict").getAttribute("aria-pressed") !== "true";
  if (place.hidden) return;
  if (asked === null) return void (place.innerHTML = `<b>No more questions after this step.</b> ${score}`);
  const q = x.steps[asked].question, done = chosen !== null, good = chosen === q.right;
  const kind = i => !done ? "" : i === q.right ? "right" : i === chosen ? "wrong" : "";
  const options = q.options.map((option, i) =>
    `<button data-option="${i}" ${done ? "disabled" : ""} class="${kind(i)}">${i + 1}. ${safe(option)}</button>`);
  place.innerHTML = `<b>Predict step ${nr(asked)}.</b> ${score}<p>${safe(q.ask)}</p><div class="options">${options.join("")}</div>`;
  if (done) {
    place.innerHTML += `<p class="why ${good ? "" : "no"}" role="status">${good ? "Right." : "Not so."} ${safe(q.why)}</p>`
      + '<button data-go="ask">Next question</button>';
  }
}

function answer(option) {
  if (asked === null || chosen !== null || !(option in x.steps[asked].question.options)) return;
  chosen = option;
  answered++;
  right += option === x.steps[asked].question.right;
  at = asked;
  tell();
  card();
  draw();
  press("ask").focus();
}

const acts = {
  first: () => go(0),
  last: () => go(Math.min(last(), hidden() - 1)),
  play: () => play(!timer),
  ask: () => { ask(); draw(); },
  predict() {
    const on = press("predict").getAttribute("aria-pressed") !== "true";
    press("predict").setAttribute("aria-pressed", on);
    play(false);
    asked = chosen = null;
    if (on) ask();
    else card();
    draw();
  },
};
const keys = {
  ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), PageUp: () => go(at - 10),
  PageDown: () => go(Math.min(at + 10, hidden() - 1)), Home: acts.first, End: acts.last,
  " ": acts.play, p: acts.predict, P: acts.predict,
};

document.addEventListener("keydown", event => {
  const typed = event.target.matches("input[type=number], select");
  const pressed = event.key === " " && event.target.matches("button, summary");
  if (event.ctrlKey || event.metaKey || event.altKey || typed || pressed) return;
  const act = keys[event.key] || (/^[1-9]$/.test(event.key) ? () => answer(event.key - 1) : null);
  if (!act) return;
  event.preventDefault();
  act();
});

document.addEventListener("click", event => {
  const near = selector => event.target.closest(selector);
  const act = near("[data-go]"), option = near("[data-option]"), label = near("[data-request]");
  if (act) (acts[act.dataset.go] || (() => go(at + +act.dataset.go)))();
  else if (option) answer(+option.dataset.option);
  else if (label) {
    only = only === +label.dataset.request ? null : +label.dataset.request;
    draw();
  } else if (near("#steps") && x.steps.length) {
    const {from, to, columns} = view(), place = $("steps").getBoundingClientRect();
    const s = from + Math.floor((event.clientX - place.left - margin()) / ((place.width - margin() - 2) / columns));
    if (s >= from && s < Math.min(to, hidden())) go(s);
  }
});

$("slider").addEventListener("input", event => go(Math.min(+event.target.value, hidden() - 1)));
$("jump").addEventListener("change", event => go(Math.min((+event.target.value || 0) - x.first, hidden() - 1)));
$("speed").addEventListener("change", () => timer && play(true));
addEventListener("resize", draw);
addEventListener("beforeprint", () => {                 // on paper: every step, in bands, and what happened in words
  const columns = 36, usual = /gets? the next token\.$/;
  document.querySelector("details").open = true;
  $("bands").innerHTML = "";
  for (let from = 0; from < x.steps.length && from < 20 * columns; from += columns) {
    const to = Math.min(x.steps.length, from + columns), place = document.createElement("section");
    $("bands").append(place);
    band(place, {from, to, end: to, columns, cursor: at, only: null, fades: false});
  }
  const told = x.steps.map((step, s) => [nr(s), step.said.filter(said => !usual.test(said))]).filter(([, said]) => said.length);
  $("happened").innerHTML = told.slice(0, 200).map(([s, said]) => `<p><b>${s}</b> ${safe(said.join(" "))}</p>`).join("");
});

// Inside of a notebook. The kernel writes new steps into .xray-feed; the page writes its score and how many it has.
let frame = null;
try { frame = window.frameElement; } catch { /* a frame of somebody else's page */ }
const beside = selector => frame && frame.closest(".xray") && frame.closest(".xray").querySelector(selector);

function tell() {
  const field = beside(".xray-says input");
  if (!field) return;
  field.value = `${right} of ${answered}, ${x.steps.length} steps`;
  field.dispatchEvent(new Event("input", {bubbles: true}));
}

function feed(place) {                                  // who looks at the last step goes on with the new ones
  const more = JSON.parse(place.textContent || "null"), known = x.steps.length;
  if (!more || more.since > known || more.since + more.steps.length <= known) return;
  const follow = at >= last() && asked === null;
  Object.assign(x, more, {steps: x.steps.concat(more.steps.slice(known - more.since))});
  remember();
  head();
  if (follow) at = last();
  draw();
  tell();
}

function theme() {
  const body = parent.document.body, look = parent.getComputedStyle(body), root = document.documentElement;
  for (const one of ["ui-font-color1", "ui-font-color2", "layout-color1", "layout-color2", "layout-color3", "border-color2"])
    root.style.setProperty(`--jp-${one}`, look.getPropertyValue(`--jp-${one}`));
  root.style.colorScheme = body.dataset.jpThemeLight === "false" ? "dark" : "light";
}

remember();
head();
if (x.follow) at = Math.max(0, last());
if (frame) {
  document.documentElement.classList.add("inside");
  theme();
  new MutationObserver(theme).observe(parent.document.body, {attributes: true});
  const place = beside(".xray-feed");
  if (place) {
    new MutationObserver(() => feed(place)).observe(place, {childList: true, subtree: true, characterData: true});
    feed(place);
  }
  tell();
}
draw();
