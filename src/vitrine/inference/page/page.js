"use strict";
// The page: takes a drawing, a picture or a test image, has the worker compute the model, and shows what it answers.

const { model, classes, heat } = JSON.parse(document.getElementById("config").textContent);
const byId = (id) => document.getElementById(id);
const MAX_PIXELS = 50_000_000; // of a picture: as many as a browser holds in a canvas without trouble
const SHOWN_CLASSES = 10;
const [HEIGHT, WIDTH] = model.image_size;
const [ROWS, COLUMNS] = model.grid;
const BRUSH = { mnist: 22, digits: 28, plain: 22 }[model.preparation.drawing];

// Worker --------------------------------------------------------------------------------------------------------------
// While it computes, only the latest request waits.

const worker = new Worker(URL.createObjectURL(new Blob([byId("worker").textContent], { type: "text/javascript" })));
const view = { block: model.depth - 1, patch: null };
let busy = true;
let waiting = null; // {image, label, time}: the request that is sent next
let current = null; // the one that is being answered
let label = null; // true class of the image that was asked about last
let answer = null;
let begun = 0; // pictures, test images and strokes so far: what is decoded later than a newer one is dropped

worker.postMessage({ load: { config: model, chunks: [...document.querySelectorAll(".weights")].map((script) => script.textContent) } });
worker.onmessage = ({ data }) => {
  busy = false;
  if (data.error) report(`The model cannot be computed: ${data.error}.`);
  else if (data.ready) byId("status").textContent = "Ready.";
  else show(data);
  if (waiting) send();
};
worker.onerror = (event) => report(`The model cannot be computed: ${event.message}.`);

/** Asks about an image, {picture}, {drawing} or {sample}, and its true class if that is known. */
function askAbout(image, trueClass = null) {
  label = trueClass;
  request(image);
}

/** Asks about the image that was asked about last, in the view that is chosen now. */
function askAgain() {
  request(waiting?.image ?? {});
}

function request(image) {
  waiting = { image, label, time: performance.now() };
  if (!busy) send();
}

function send() {
  current = waiting;
  waiting = null;
  busy = true;
  const pixels = Object.values(current.image)[0]?.pixels;
  worker.postMessage({ ...current.image, ...view }, pixels ? [pixels.buffer] : []);
}

// Answers -------------------------------------------------------------------------------------------------------------

function show(data) {
  answer = data.empty ? null : data;
  showClasses();
  showSeen();
  showMaps();
  const time = Math.max(1, Math.round(performance.now() - current.time));
  byId("status").textContent = answer ? `${summary()} Computed in ${time} ms.` : "Nothing is drawn yet.";
  document.body.dataset.answers = Number(document.body.dataset.answers ?? 0) + 1;
}

function summary() {
  const best = ranked()[0], name = (index) => `\u2068${classes[index]}\u2069`;  // it may be written from right to left
  const verdict = current.label === null ? "" : best === current.label ? ", which is right" : `; the true class is ${name(current.label)}`;
  return `${name(best)}, ${percent(answer.probabilities[best])}${verdict}.`;
}

const ranked = () => [...classes.keys()].sort((a, b) => answer.probabilities[b] - answer.probabilities[a]);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function showClasses() {
  const body = document.querySelector("#classes tbody");
  if (!answer) return body.replaceChildren();
  const order = ranked(), few = classes.length <= SHOWN_CLASSES;
  const shown = few ? [...classes.keys()] : order.slice(0, SHOWN_CLASSES);
  if (current.label !== null && !shown.includes(current.label)) shown.push(current.label);
  body.replaceChildren(...shown.map((index) => {
    const row = document.createElement("tr"), bar = document.createElement("span");
    row.classList.toggle("best", index === order[0]);
    row.classList.toggle("true", index === current.label);
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = classes[index];
    bar.className = "bar";
    bar.style.width = `${100 * answer.probabilities[index]}%`;
    row.append(name, document.createElement("td"), document.createElement("td"));
    row.cells[1].append(bar);
    row.cells[2].textContent = percent(answer.probabilities[index]);
    return row;
  }));
}

/** The pixels of the answer as a canvas of their own size. */
function pixelCanvas() {
  const { channels } = model.preparation, image = new ImageData(WIDTH, HEIGHT);
  for (let pixel = 0; pixel < WIDTH * HEIGHT; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * pixel + channel] = answer.pixels[pixel * channels + (channels === 1 ? 0 : channel)];
    }
    image.data[4 * pixel + 3] = channels === 4 ? answer.pixels[4 * pixel + 3] : 255;
  }
  return painted(image);
}

function painted(image) {
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function draw(canvas, source, alpha = 1) {
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.globalAlpha = alpha;
  context.drawImage(source, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = 1;
}

function showSeen() {
  const canvas = byId("seen"), context = canvas.getContext("2d"), scale = canvas.width / WIDTH;
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!answer) return;
  draw(canvas, pixelCanvas());
  const [high, wide] = model.patch_size.map((side) => side * scale), [down, right] = model.stride.map((side) => side * scale);
  context.strokeStyle = "rgba(140, 150, 160, .45)";
  context.lineWidth = 1;
  for (let line = 1; line < COLUMNS && COLUMNS <= 56; line++) context.strokeRect(line * right, -1, canvas.width, canvas.height + 2);
  for (let line = 1; line < ROWS && ROWS <= 56; line++) context.strokeRect(-1, line * down, canvas.width + 2, canvas.height);
  if (view.patch === null) return;
  const left = (view.patch % COLUMNS) * right, top = Math.floor(view.patch / COLUMNS) * down;
  for (const [colour, width] of [["#000", 6], ["#fff", 3]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(left + 2, top + 2, Math.max(2, wide - 4), Math.max(2, high - 4));
  }
}

// Attention -----------------------------------------------------------------------------------------------------------

const HEAT = heat.map((colour) => [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16)));

function showView() {
  const pool = view.block === model.depth;
  byId("block-shown").textContent = pool ? "pool" : `${view.block + 1} of ${model.depth}`;
  byId("asker").textContent = pool ? "The pool’s query attends to:" : view.patch === null
    ? `${model.pool === "cls" ? "The class token attends" : "All patches, on average, attend"} to:`
    : `The patch in row ${Math.floor(view.patch / COLUMNS) + 1}, column ${(view.patch % COLUMNS) + 1} attends to:`;
  byId("back").hidden = view.patch === null;
}

function showMaps() {
  if (!answer) return byId("maps").replaceChildren();
  const image = pixelCanvas();
  const tiles = answer.maps.map((map, head) => tile(image, map, `head ${head + 1}`));
  byId("maps").replaceChildren(...tiles, tile(image, answer.rollout, "through all blocks (rollout)"));
}

function tile(image, map, name) {
  const item = document.createElement("li"), canvas = document.createElement("canvas");
  canvas.width = Math.round(140 * Math.min(1, WIDTH / HEIGHT));
  canvas.height = Math.round(140 * Math.min(1, HEIGHT / WIDTH));
  canvas.style.width = `${100 * Math.min(1, WIDTH / HEIGHT)}%`;
  const most = map.indexOf(Math.max(...map)), row = Math.floor(most / COLUMNS) + 1, column = (most % COLUMNS) + 1;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}: most to the patch in row ${row}, column ${column}, ${percent(map[most])}`);
  const context = canvas.getContext("2d");
  context.filter = "grayscale(1)";
  draw(canvas, image);
  context.filter = "none";
  const colours = new ImageData(COLUMNS, ROWS);
  map.forEach((share, patch) => colours.data.set([...heatColour(share / (map[most] || 1)), 255], 4 * patch));
  draw(canvas, painted(colours), 0.7);
  item.append(canvas, name);
  return item;
}

function heatColour(share) {
  const place = share * (HEAT.length - 1), below = Math.min(HEAT.length - 2, Math.floor(place));
  return HEAT[below].map((value, channel) => value + (place - below) * (HEAT[below + 1][channel] - value));
}
byId("scale").style.background = `linear-gradient(90deg, ${heat.join(", ")})`;

byId("block").addEventListener("input", () => {
  view.block = Number(byId("block").value) - 1;
  look();
});

/** Looks at the same image in the chosen view. */
function look() {
  showView();
  if (!answer) return;
  showSeen();
  askAgain();
}

function choose(patch) {
  view.patch = patch;
  look();
}
byId("back").addEventListener("click", () => {
  choose(null);
  byId("seen").focus();
});
byId("seen").addEventListener("click", (event) => {
  const place = (offset, length, axis) => {
    const stride = model.stride[axis], pixel = (offset / length) * model.image_size[axis];
    return Math.max(0, Math.min(model.grid[axis] - 1, Math.floor((pixel - (model.patch_size[axis] - stride) / 2) / stride)));
  };
  const { clientWidth, clientHeight } = byId("seen");
  choose(place(event.offsetY, clientHeight, 0) * COLUMNS + place(event.offsetX, clientWidth, 1));
});
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
byId("seen").addEventListener("keydown", (event) => {
  if (event.key === "Escape") return choose(null);
  if (!(event.key in ARROWS)) return;
  event.preventDefault();
  const [right, down] = view.patch === null ? [0, 0] : ARROWS[event.key];
  const patch = view.patch ?? Math.floor((ROWS * COLUMNS) / 2);
  const along = (place, change, count) => Math.max(0, Math.min(count - 1, place + change));
  choose(along(Math.floor(patch / COLUMNS), down, ROWS) * COLUMNS + along(patch % COLUMNS, right, COLUMNS));
});

// Drawing -------------------------------------------------------------------------------------------------------------

const pad = byId("pad");
if (pad) {
  const context = pad.getContext("2d", { willReadFrequently: true });
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = "#fff";
  context.lineWidth = BRUSH;
  let from = null; // where the pointer was; null while it does not draw
  let pen = [pad.width / 2, pad.height / 2]; // of the keyboard
  let scheduled = false;

  const place = (event) => [(event.offsetX * pad.width) / pad.clientWidth, (event.offsetY * pad.height) / pad.clientHeight];
  const line = (start, end) => {
    byId("hint").hidden = true;
    context.beginPath();
    context.moveTo(...start);
    context.lineTo(end[0] + 0.01, end[1]); // nothing is drawn from a point to itself
    context.stroke();
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      askAboutDrawing();
    });
  };
  const askAboutDrawing = () => {
    begun++;
    chosen(null);
    const rgba = context.getImageData(0, 0, pad.width, pad.height).data;
    const pixels = Uint8ClampedArray.from({ length: rgba.length / 4 }, (_, index) => rgba[4 * index + 3]); // opacity is ink
    askAbout({ drawing: { pixels, width: pad.width, height: pad.height } });
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pad.setPointerCapture(event.pointerId);
    from = place(event);
    line(from, from);
  });
  pad.addEventListener("pointermove", (event) => {
    if (!from) return;
    for (const step of event.getCoalescedEvents?.() ?? [event]) {
      line(from, place(step));
      from = place(step);
    }
  });
  for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => { from = null; });
  pad.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const next = pen.map((value, axis) => Math.max(0, Math.min([pad.width, pad.height][axis], value + 14 * ARROWS[event.key][axis])));
    if (event.shiftKey) line(pen, next);
    pen = next;
  });
  byId("clear").addEventListener("click", () => {
    context.clearRect(0, 0, pad.width, pad.height);
    byId("hint").hidden = false;
    pen = [pad.width / 2, pad.height / 2];
    askAboutDrawing();
  });
}

// Pictures ------------------------------------------------------------------------------------------------------------

function report(problem) {
  byId("problem").textContent = problem;
}

/** Marks the test image that is shown; null if it is none of them. */
function chosen(button) {
  report("");
  for (const other of document.querySelectorAll("#samples button")) other.setAttribute("aria-pressed", String(other === button));
}

// By EXIF orientation, from 1 on: the matrix that turns a picture upright, and its shift in widths and heights.
const TURNS = ["1 0 0 1 00", "-1 0 0 1 w0", "-1 0 0 -1 wh", "1 0 0 -1 0h", "0 1 1 0 00", "0 1 -1 0 h0", "0 -1 -1 0 hw", "0 -1 1 0 0w"];

/** The pixels of an <img> or ImageBitmap, RGBA, unscaled, turned as its orientation says. */
function pixelsOf(image, width, height, orientation = 1) {
  const canvas = document.createElement("canvas"), [a, b, c, d, shift] = TURNS[orientation - 1].split(" ");
  [canvas.width, canvas.height] = orientation > 4 ? [height, width] : [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.setTransform(a, b, c, d, ...[...shift].map((side) => ({ 0: 0, w: width, h: height })[side]));
  context.drawImage(image, 0, 0);
  return { pixels: context.getImageData(0, 0, canvas.width, canvas.height).data, width: canvas.width, height: canvas.height };
}

/** The EXIF orientation of a WebP, which not every browser follows. In its bytes it becomes 1, so that none does. */
function takeOrientation(file) {
  const name = (at) => String.fromCharCode(...new Uint8Array(file.buffer, at, 4));
  try {
    if (name(0) !== "RIFF" || name(8) !== "WEBP") return 1;
    let at = 12; // of a chunk: its name, its size, and its bytes
    while (name(at) !== "EXIF") at += 8 + 2 * Math.ceil(file.getUint32(at + 4, true) / 2);
    const tiff = at + (name(at + 8) === "Exif" ? 14 : 8), little = name(tiff).startsWith("II");
    const first = tiff + file.getUint32(tiff + 4, little), count = file.getUint16(first, little);
    for (let entry = first + 2; entry < first + 2 + 12 * count; entry += 12) {
      if (file.getUint16(entry, little) !== 0x112) continue;
      const orientation = file.getUint16(entry + 8, little);
      file.setUint16(entry + 8, 1, little);
      return TURNS[orientation - 1] ? orientation : 1;
    }
  } catch { /* it has ended without one */ }
  return 1;
}

async function openFile(file) {
  const own = ++begun, image = new Image();
  image.src = URL.createObjectURL(file);
  try {
    await new Promise((resolve, reject) => Object.assign(image, { onload: resolve, onerror: reject })); // reads its size only
    if (own !== begun) return;
    const { naturalWidth: width, naturalHeight: height } = image;
    if (width * height > MAX_PIXELS) {
      const size = `${width.toLocaleString("en")} × ${height.toLocaleString("en")}`;
      return report(`${file.name} has ${size} pixels; the page takes up to ${MAX_PIXELS / 1e6} million. Make it smaller first.`);
    }
    const upright = { colorSpaceConversion: "none", imageOrientation: "from-image" };
    const content = await file.arrayBuffer(), orientation = takeOrientation(new DataView(content));
    const bitmap = await createImageBitmap(new Blob([content], { type: file.type }), upright); // fails if a part is missing
    if (own === begun) {
      chosen(null);
      askAbout({ picture: pixelsOf(bitmap, bitmap.width, bitmap.height, orientation) });
    }
    bitmap.close();
  } catch {
    if (own === begun) report(`${file.name} is not a picture that this browser can read.`);
  } finally {
    URL.revokeObjectURL(image.src);
  }
}

byId("file").addEventListener("change", (event) => {
  if (event.target.files.length) openFile(event.target.files[0]);
  event.target.value = "";
});
for (const type of ["dragenter", "dragover"]) document.addEventListener(type, (event) => {
  event.preventDefault();
  document.body.classList.add("dragging");
});
for (const type of ["dragleave", "drop"]) document.addEventListener(type, () => document.body.classList.remove("dragging"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const file = event.dataTransfer.files[0];
  if (file) return openFile(file);
  begun++;
  report("That is not a file. Drop a picture from a folder, or save it first.");
});
for (const button of document.querySelectorAll("#samples button")) button.addEventListener("click", async () => {
  const own = ++begun, image = button.querySelector("img");
  await image.decode();
  if (own !== begun) return;
  chosen(button);
  askAbout({ sample: pixelsOf(image, image.naturalWidth, image.naturalHeight) }, Number(button.dataset.label));
});

showView();
document.querySelector("#samples button")?.click(); // something at once
