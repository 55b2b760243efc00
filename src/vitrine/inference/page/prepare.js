"use strict";
// From a picture or a drawing to the pixels that the model was trained on: what src/vitrine/data/preparation.py does with
// an image file, and what the makers of MNIST and of the digits did with handwriting.
//
// An image is {pixels, width, height}: `pixels` are (height * width, channels) in [0, 255].

/**
 * A picture, RGBA -> pixels (H * W, channels), where `size` is [H, W]. For data sets of image files `resize` is
 *
 * - crop: the picture is scaled until it covers `size / crop_pct` (bicubic), then the centre cut out;
 * - pad: it is scaled until it fits into `size`, then the rest padded with `fill`;
 * - squash: each side is scaled to that of `size`.
 *
 * For data sets of arrays the largest central part with their `ratio`, [height, width], is cut out, then resized
 * (bilinear).
 */
function preparePicture({ pixels, width, height }, { size, channels, resize, crop_pct, fill, ratio }) {
  const image = { pixels: toChannels(pixels, channels), width, height }, [toHeight, toWidth] = size;
  if (resize === "arrays") {
    const times = Math.min(height / ratio[0], width / ratio[1]);
    const part = centre(image, ratio.map((side) => Math.max(1, roundHalfToEven(times * side))), channels);
    return resized(part, toWidth, toHeight, channels, BILINEAR).pixels;
  }
  const covered = [toWidth, toHeight].map((side) => Math.floor(side / crop_pct)); // of pad and squash, 1
  const scale = (resize === "pad" ? Math.min : Math.max)(covered[0] / width, covered[1] / height);
  const [wide, high] = [[width, covered[0]], [height, covered[1]]].map(([side, to]) => {
    if (resize === "squash") return to;
    const scaled = roundHalfToEven(side * scale);
    return resize === "pad" ? Math.min(to, Math.max(1, scaled)) : Math.max(to, scaled);
  });
  const blended = channels === 4 && (wide !== width || high !== height); // so that no hidden colour shows
  const scaled = resized(blended ? premultiplied(image) : image, wide, high, channels, BICUBIC);
  if (blended) scaled.pixels = unpremultiplied(scaled.pixels);
  return (resize === "pad" ? padded(scaled, size, channels, fill) : centre(scaled, size, channels)).pixels;
}

/** RGBA -> 1 (grey, with the weights of ITU-R 601 that Pillow uses), 3 or 4 channels. */
function toChannels(rgba, channels) {
  if (channels === 4) return Uint8ClampedArray.from(rgba);
  const count = rgba.length / 4, result = new Uint8ClampedArray(count * channels);
  for (let pixel = 0, source = 0; pixel < count; pixel++, source += 4) {
    const red = rgba[source], green = rgba[source + 1], blue = rgba[source + 2];
    if (channels === 1) {
      result[pixel] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
    } else {
      result[3 * pixel] = red;
      result[3 * pixel + 1] = green;
      result[3 * pixel + 2] = blue;
    }
  }
  return result;
}

const INK = 64; // a value from which a pixel counts as drawn

/**
 * A drawing -> pixels (H * W, 1), or null where nothing is drawn. `drawing.style` is
 *
 * - mnist: the digit scaled to fit 20 x 20 pixels, its centre of mass at pixel 14 of 28 x 28 (LeCun et al., 1998,
 *   section III.A);
 * - digits: the digit scaled to a bitmap of 32 x 32, whose blocks of 4 x 4 are counted (Alpaydin and Kaynak, 1998); not
 *   wider than 20, as most of theirs;
 * - plain: the whole pad.
 */
function prepareDrawing(ink, { size, drawing }) {
  const box = boundingBox(ink);
  if (!box) return null;
  const image = { mnist: () => mnistDigit(box), digits: () => countedDigit(box), plain: () => ink }[drawing]();
  return resized(image, size[1], size[0], 1, BILINEAR).pixels;
}

function mnistDigit(box) {
  const digit = fitted(box, 20);
  let mass = 0, x = 0, y = 0;
  digit.pixels.forEach((value, index) => {
    mass += value;
    x += value * (index % digit.width);
    y += value * Math.floor(index / digit.width);
  });
  return placed(digit, 28, Math.round(14 - x / mass), Math.round(14 - y / mass));
}

function countedDigit(box) {
  const digit = fitted(box, 32, 20);
  const bitmap = placed(digit, 32, (32 - digit.width) >> 1, (32 - digit.height) >> 1).pixels;
  const counts = new Float64Array(64);
  bitmap.forEach((value, index) => { counts[(index >> 7) * 8 + ((index & 31) >> 2)] += value >= INK ? 1 : 0; });
  return { pixels: Uint8ClampedArray.from(counts, (count) => roundHalfToEven((count * 255) / 16)), width: 8, height: 8 };
}

/** Scaled so that the longer side is `side`, then made narrower if it is wider than `most`. */
function fitted(image, side, most = side) {
  const longer = Math.max(image.width, image.height);
  const [width, height] = [image.width, image.height].map((length) => Math.max(1, Math.round((length * side) / longer)));
  return resized(image, Math.min(most, width), height, 1, BILINEAR);
}

/** On a black square of `side` pixels. */
function placed(image, side, left, top) {
  const pixels = new Uint8ClampedArray(side ** 2);
  image.pixels.forEach((value, index) => {
    const x = left + (index % image.width), y = top + Math.floor(index / image.width);
    if (x >= 0 && y >= 0 && x < side && y < side) pixels[y * side + x] = value;
  });
  return { pixels, width: side, height: side };
}

/** The part of a grey image that holds everything drawn; null if that is nothing. */
function boundingBox({ pixels, width, height }) {
  let left = width, right = -1, top = height, bottom = -1;
  pixels.forEach((value, index) => {
    if (value < INK) return;
    const x = index % width, y = Math.floor(index / width);
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  });
  if (right < 0) return null;
  const box = new Uint8ClampedArray((right - left + 1) * (bottom - top + 1));
  for (let y = top; y <= bottom; y++) {
    box.set(pixels.subarray(y * width + left, y * width + right + 1), (y - top) * (right - left + 1));
  }
  return { pixels: box, width: right - left + 1, height: bottom - top + 1 };
}

/** The central part of [height, width] pixels. */
function centre({ pixels, width, height }, [high, wide], channels) {
  const left = Math.floor((width - wide) / 2), top = Math.floor((height - high) / 2);
  const result = new Uint8ClampedArray(high * wide * channels);
  for (let y = 0; y < high; y++) {
    const start = ((top + y) * width + left) * channels;
    result.set(pixels.subarray(start, start + wide * channels), y * wide * channels);
  }
  return { pixels: result, width: wide, height: high };
}

/** In the middle of [height, width] pixels of one colour. */
function padded({ pixels, width, height }, [high, wide], channels, fill) {
  const left = Math.floor((wide - width) / 2), top = Math.floor((high - height) / 2);
  const result = new Uint8ClampedArray(high * wide * channels).map((_, index) => fill[(index % channels) % fill.length]);
  for (let y = 0; y < height; y++) {
    const row = pixels.subarray(y * width * channels, (y + 1) * width * channels);
    result.set(row, ((top + y) * wide + left) * channels);
  }
  return { pixels: result, width: wide, height: high };
}

// Resampling as Pillow's Image.resize: weights of 22 bits, rounded to 8 bits after each of two passes. -----------------

const BICUBIC = { reach: 2, weight: (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0) };
const BILINEAR = { reach: 1, weight: (x) => Math.max(0, 1 - x) };
const UNIT = 2 ** 22;

function resized({ pixels, width, height }, toWidth, toHeight, channels, filter) {
  const across = () => {
    if (toWidth !== width) pixels = resampled(pixels, height, channels, taps(width, toWidth, filter));
    width = toWidth;
  };
  const down = () => {
    if (toHeight !== height) pixels = resampled(pixels, 1, width * channels, taps(height, toHeight, filter));
    height = toHeight;
  };
  const tall = height > toHeight && height - toHeight > 2 * (width - toWidth); // Pillow 13's rule
  for (const pass of tall ? [down, across] : [across, down]) pass();
  return { pixels, width, height };
}

/** The weights of each new pixel, and the first old pixel that they belong to. */
function taps(from, to, filter) {
  const scale = from / to, spread = Math.max(1, scale), reach = filter.reach * spread;
  return Array.from({ length: to }, (_, index) => {
    const centre = (index + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5)), end = Math.min(from, Math.trunc(centre + reach + 0.5));
    const weights = Array.from({ length: end - first }, (_, tap) => {
      return filter.weight(Math.abs((first + tap - centre + 0.5) / spread));
    });
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, weights: weights.map((weight) => Math.trunc((weight / sum) * UNIT + (weight < 0 ? -0.5 : 0.5))) };
  });
}

/** (outer, from, inner) -> (outer, to, inner): the axis in the middle. */
function resampled(pixels, outer, inner, places) {
  const from = pixels.length / outer / inner, result = new Uint8ClampedArray(outer * places.length * inner);
  let target = 0;
  for (let line = 0; line < outer; line++) {
    for (const { first, weights } of places) {
      const start = (line * from + first) * inner;
      for (let index = 0; index < inner; index++) {
        let sum = UNIT / 2;
        for (let tap = 0; tap < weights.length; tap++) sum += pixels[start + tap * inner + index] * weights[tap];
        result[target++] = Math.floor(sum / UNIT);
      }
    }
  }
  return result;
}

function premultiplied(image) {
  const pixels = image.pixels.map((value, index) => {
    if (index % 4 === 3) return value;
    const product = value * image.pixels[index | 3] + 128;
    return ((product >> 8) + product) >> 8;
  });
  return { ...image, pixels };
}

function unpremultiplied(pixels) {
  return pixels.map((value, index) => {
    const alpha = pixels[index | 3];
    return index % 4 === 3 || alpha === 0 ? value : Math.floor((255 * value) / alpha);
  });
}

function roundHalfToEven(value) {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded; // as Python's round
}
