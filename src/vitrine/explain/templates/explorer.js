"use strict";
// Attention of one image after another, by block, head and query; the bytes are explained in explorer.py.
const explored = JSON.parse(document.getElementById("explored").textContent);
const { depth, heads: headCount, patches: patchCount, rows, columns, height: imageHeight, width: imageWidth, detail } = explored;
const picture = document.getElementById("picture");
const block = document.getElementById("block");
const CELL = 12;  // pixels of a patch in a canvas of a map, down; across as many as its ratio asks for
const ACROSS = Math.max(1, Math.round(CELL * (imageWidth / columns) / (imageHeight / rows)));

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const images = explored.images.map((image) => {
  const arrays = { element: new Image() };
  arrays.element.src = image.source;
  arrays.caption = image.caption;
  for (const name of ["image", "patches", "rollout", "similarity", "pool"]) if (image[name]) arrays[name] = bytes(image[name]);
  return arrays;
});
const steps = depth + (images[0].pool ? 1 : 0);
let chosen = 0, patch = null;

const share = (byte) => (byte / 255) ** 2;
const percent = (value) => `${Number((100 * value).toPrecision(2))} %`;
const part = (values, index, decode) => Array.from(values.subarray(index * patchCount, (index + 1) * patchCount), decode);

// Maps of the chosen image, block and query, each with its name.
function headMaps() {
  const image = images[chosen], step = Number(block.value) - 1;
  if (step === depth) return Array.from({ length: headCount }, (_, head) => ({ name: `head ${head + 1}`, values: part(image.pool, head, share) }));
  const maps = [];
  if (patch === null || detail === "heads") {
    for (let head = 0; head < headCount; head++) {
      const at = step * headCount + head;
      const values = patch === null ? part(image.image, at, share) : part(image.patches, at * patchCount + patch, share);
      maps.push({ name: `head ${head + 1}`, values });
    }
  }
  const mean = maps.length ? maps[0].values.map((_, index) => maps.reduce((sum, map) => sum + map.values[index], 0) / maps.length)
    : part(image.patches, step * patchCount + patch, share);
  if (maps.length !== 1) maps.push({ name: "mean of the heads", values: mean });
  return maps;
}

function throughMaps() {
  const image = images[chosen], step = Number(block.value);
  const query = patch === null ? 0 : patch + 1;
  const rollout = part(image.rollout, query, share);
  const maps = [{ name: `rollout, all blocks, from 0 % (dark) to ${percent(Math.max(...rollout))} (light)`, values: rollout, scale: "attention" }];
  if (patch !== null && image.similarity && step <= depth) {
    const values = part(image.similarity, step * patchCount + patch, (byte) => byte / 255);
    maps.push({ name: `similarity after block ${step}, from -1 (dark) to 1 (light)`, values, scale: "similarity", most: 1 });
  }
  return maps;
}

function colourOf(scale, value) {
  const colours = explored.colours[scale];
  const place = Math.min(Math.max(value, 0), 1) * (colours.length - 1), low = Math.floor(place), high = Math.min(low + 1, colours.length - 1);
  const channel = (colour, index) => parseInt(colour.slice(1 + 2 * index, 3 + 2 * index), 16);
  const mixed = [0, 1, 2].map((index) => channel(colours[low], index) + (place - low) * (channel(colours[high], index) - channel(colours[low], index)));
  return `rgb(${mixed.map(Math.round)})`;
}

const where = (index) => `row ${Math.floor(index / columns) + 1}, column ${index % columns + 1}`;

// Outlines the chosen patch in white on black, which is seen on any colour.
function outline(pen, width, height, lines) {
  ["#000000", "#ffffff"].forEach((colour, index) => {
    pen.strokeStyle = colour;
    pen.lineWidth = lines[index];
    pen.strokeRect((patch % columns) * width, Math.floor(patch / columns) * height, width, height);
  });
}

function drawMaps(list, maps, most) {
  list.replaceChildren(...maps.map(({ name, values, scale = "attention", most: own }) => {
    const canvas = document.createElement("canvas"), item = document.createElement("li"), top = own ?? most ?? Math.max(...values);
    canvas.width = columns * ACROSS;
    canvas.height = rows * CELL;
    const pen = canvas.getContext("2d");
    values.forEach((value, index) => {
      pen.fillStyle = colourOf(scale, top > 0 ? value / top : 0);
      pen.fillRect((index % columns) * ACROSS, Math.floor(index / columns) * CELL, ACROSS, CELL);
    });
    if (patch !== null) outline(pen, ACROSS, CELL, [4, 2]);
    // A patch is always most similar to itself.
    const others = scale === "similarity" ? values.map((value, index) => (index === patch ? -1 : value)) : values;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${name}: most at ${where(others.indexOf(Math.max(...others)))}`);
    item.append(canvas, name);
    return item;
  }));
}

// The longer side of the picture is that of the canvas in the page; the shorter one follows.
picture.width = Math.round(picture.width * Math.min(1, imageWidth / imageHeight));
picture.height = Math.round(picture.height * Math.min(1, imageHeight / imageWidth));
picture.style.width = `${100 * Math.min(1, imageWidth / imageHeight)}%`;

function drawPicture() {
  const pen = picture.getContext("2d"), { element } = images[chosen], width = picture.width / columns, height = picture.height / rows;
  pen.imageSmoothingEnabled = false;
  pen.clearRect(0, 0, picture.width, picture.height);
  if (element.complete && element.naturalWidth) pen.drawImage(element, 0, 0, picture.width, picture.height);
  pen.lineWidth = 1;
  pen.strokeStyle = "rgba(128, 128, 128, 0.6)";
  pen.beginPath();
  for (let column = 1; column < columns; column++) { pen.moveTo(column * width, 0); pen.lineTo(column * width, picture.height); }
  for (let row = 1; row < rows; row++) { pen.moveTo(0, row * height); pen.lineTo(picture.width, row * height); }
  pen.stroke();
  if (patch !== null) outline(pen, width, height, [6, 3]);
}

function show() {
  const step = Number(block.value), maps = headMaps();
  const most = Math.max(1e-9, ...maps.flatMap((map) => map.values));
  drawPicture();
  drawMaps(document.getElementById("heads"), maps, most);
  drawMaps(document.getElementById("through"), throughMaps());
  const name = step > depth ? "pool" : String(step);
  document.getElementById("block-name").textContent = name;
  block.setAttribute("aria-valuetext", step > depth ? "the pool" : `block ${step} of ${depth}`);
  document.getElementById("most").textContent = `${percent(most)} of the attention`;
  const query = step > depth ? "the pool's query" : patch === null ? explored.reader.split(";")[0] : `the patch in ${where(patch)}`;
  document.getElementById("seen").textContent = `${images[chosen].caption}. Attention of ${query}.`;
}

images.forEach((image, index) => {
  const label = document.createElement("label"), input = document.createElement("input"), small = new Image();
  Object.assign(input, { type: "radio", name: "explored-image", checked: index === 0 });
  input.setAttribute("aria-label", `Image ${index + 1}: ${image.caption}`);
  input.addEventListener("change", () => { chosen = index; show(); });
  small.src = image.element.src;
  small.alt = "";
  label.append(input, small);
  document.querySelector("#explorer .choices").append(label);
  image.element.addEventListener("load", () => { if (index === chosen) drawPicture(); });
});

if (detail !== "image") {
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    const at = (offset, size, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
    const clicked = at(event.clientY - box.top, box.height, rows) * columns + at(event.clientX - box.left, box.width, columns);
    patch = clicked === patch ? null : clicked;
    show();
  });
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") patch = null;
    else if (move && patch === null) patch = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    else if (move) {
      const row = Math.floor(patch / columns) + move[0], column = patch % columns + move[1];
      patch = Math.min(rows - 1, Math.max(0, row)) * columns + Math.min(columns - 1, Math.max(0, column));
    } else return;
    event.preventDefault();
    show();
  });
}

block.max = String(steps);
block.value = String(steps);
block.addEventListener("input", show);
document.getElementById("bar").style.background = `linear-gradient(to right, ${explored.colours.attention.join(",")})`;
show();
