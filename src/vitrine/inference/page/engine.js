"use strict";
// A Vision Transformer in plain JavaScript, for one image at a time: the layers of src/vitrine/models, in the order that
// data passes through them and under the names of their parameters. A page runs it in a worker; it depends on nothing.
//
// A table is a Float32Array, row after row: tokens are (N, D), an image is (H * W, C). N counts the prefix (class token
// and registers) and the P patches in raster order. Layers that a model was built without have no weights, and pass on
// what they are given.

class VisionTransformer {
  /**
   * @param config  written by describe.py beside this file: the model's choices and sizes, and `shapes` of the weights
   * @param chunks  base64 texts, which together are the weights' bytes, in the order of `shapes`
   */
  constructor(config, chunks) {
    this.config = config;
    this.weights = {};
    const values = config.dtype === "float16" ? fromFloat16(decoded(chunks)) : new Float32Array(decoded(chunks));
    let start = 0;
    for (const [name, shape] of Object.entries(config.shapes)) {
      this.weights[name] = values.subarray(start, (start += shape.reduce((count, side) => count * side, 1)));
    }
  }

  /** Pixels (H * W, C) in [0, 255] -> logits. Keeps the attention weights, for `maps` and `rollout`. */
  forward(pixels) {
    this.attention = []; // by block and head, (N, N); rows are queries
    this.poolAttention = []; // by head, (1, P), with pool=map
    let x = this.embed(this.patches(this.normalised(pixels)));
    for (let index = 0; index < this.config.depth; index++) {
      x = this.block(x, `blocks.${index}`);
      if (index === 0) x = this.convPosition(x);
    }
    return this.linear(this.pool(this.norm(x, "norm")), "head");
  }

  normalised(pixels) {
    const { mean, std, in_channels: channels } = this.config;
    return Float32Array.from(pixels, (value, index) => {
      const channel = index % channels;
      return (value / 255 - mean[channel % mean.length]) / std[channel % std.length];
    });
  }

  // Patch embedding: (H * W, C) -> (P, D) ---------------------------------------------------------------------------

  patches(image) {
    const { image_size: size, in_channels: channels, patch_size: window, stride, patch_embed: kind } = this.config; // (H, W)
    if (kind === "conv_stem") return this.convStem(image, size, channels);
    if (kind === "shifted") {
      const patches = unfold(withShifted(image, size, channels, window.map((side) => side >> 1)), size, 5 * channels, window, stride);
      return this.linear(this.norm(patches, "patch_embed.norm"), "patch_embed.proj");
    }
    return this.linear(unfold(image, size, channels, window, stride), "patch_embed.proj");
  }

  convStem(image, size, channels) {
    let x = image;
    for (let index = 0; this.has(`patch_embed.proj.conv_bn_relu_${index}.0`); index++) {
      const name = `patch_embed.proj.conv_bn_relu_${index}`;
      x = this.linear(unfold(x, size, channels, [3, 3], [2, 2], 1), `${name}.0`);
      size = size.map((side) => side / 2);
      channels = x.length / (size[0] * size[1]);
      x = this.batchNorm(x, `${name}.1`, 1e-5).map((value) => Math.max(0, value)); // nn.BatchNorm2d's eps
    }
    return this.linear(x, "patch_embed.proj.conv_last");
  }

  // Tokens: prefix and positions ------------------------------------------------------------------------------------

  embed(patches) {
    const prefix = ["cls_token", "reg_token"].map((name) => this.weights[name] ?? []);
    const x = new Float32Array(prefix[0].length + prefix[1].length + patches.length);
    x.set(prefix[0]);
    x.set(prefix[1], prefix[0].length);
    x.set(patches, x.length - patches.length);
    return this.norm(this.weights.pos_embed ? add(x, this.weights.pos_embed) : x, "norm_pre");
  }

  /** position=conv: adds to each patch a 3 x 3 convolution, channel by channel, of the patches around it. */
  convPosition(x) {
    const weight = this.weights["pos_conv.proj.weight"], bias = this.weights["pos_conv.proj.bias"];
    if (!weight) return x;
    const { dim, grid: [rows, columns], prefix } = this.config;
    const y = x.slice();
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const target = (prefix + row * columns + column) * dim;
        for (let channel = 0; channel < dim; channel++) y[target + channel] += bias[channel];
        for (let place = 0; place < 9; place++) {
          const above = row + Math.floor(place / 3) - 1, left = column + (place % 3) - 1;
          if (above < 0 || left < 0 || above >= rows || left >= columns) continue;
          const source = (prefix + above * columns + left) * dim;
          for (let channel = 0; channel < dim; channel++) {
            y[target + channel] += weight[channel * 9 + place] * x[source + channel];
          }
        }
      }
    }
    return y;
  }

  // Encoder block: (N, D) -> (N, D) ---------------------------------------------------------------------------------

  block(x, name) {
    const norm = (y, which) => this.norm(y, `${name}.${which}`);
    // norm1_out and norm2_out: of norm_placement=sandwich.
    const attention = (y) => this.layerScale(norm(this.attend(y, `${name}.attn`), "norm1_out"), `${name}.ls1`);
    const mlp = (y) => this.layerScale(norm(this.mlp(y, `${name}.mlp`), "norm2_out"), `${name}.ls2`);
    const join = (branch, y) => (this.config.residual ? add(branch, y) : branch);
    if (this.config.norm_placement === "post") {
      x = norm(join(attention(x), x), "norm1");
      return norm(join(mlp(x), x), "norm2");
    }
    x = join(attention(norm(x, "norm1")), x);
    return join(mlp(norm(x, "norm2")), x);
  }

  attend(x, name) {
    const { dim, heads, position, attention } = this.config;
    const width = dim / heads, tokens = x.length / dim;
    const [queries, keys, values] = this.project(x, name);
    const temperatures = this.weights[`${name}.temperature`];
    const output = new Float32Array(x.length);
    const maps = [];
    for (let head = 0; head < heads; head++) {
      let q = this.norm(queries[head], `${name}.q_norm`), k = this.norm(keys[head], `${name}.k_norm`);
      if (position === "rope" || position === "rope_mixed") {
        const frequencies = this.frequencies(name, head);
        q = this.rotated(q, frequencies);
        k = this.rotated(k, frequencies);
      }
      const scale = temperatures ? temperatures[head] : width ** -0.5;
      const weights = product(q, k, width).map((score) => scale * score);
      const bias = this.bias(name, head);
      if (bias) add(weights, bias);
      if (attention === "local") for (let token = 0; token < tokens; token++) weights[token * (tokens + 1)] = -Infinity;
      softmax(weights, tokens);
      maps.push(weights);
      setColumns(output, dim, head * width, product(weights, transposed(values[head], width), tokens), width);
    }
    this.attention.push(maps);
    return this.has(`${name}.proj`) ? this.linear(output, `${name}.proj`) : output;
  }

  /** (N, D) -> queries, keys and values, each by head, (N, D / heads). */
  project(x, name) {
    const { dim, heads, attention } = this.config;
    const width = dim / heads;
    const indices = [...Array(heads).keys()];
    if (attention !== "headwise") {
      const qkv = this.linear(x, `${name}.qkv`);
      return [0, 1, 2].map((map) => indices.map((head) => columns(qkv, 3 * dim, (map * heads + head) * width, width)));
    }
    const weight = this.weights[`${name}.qkv.weight`], bias = this.weights[`${name}.qkv.bias`];
    return [0, 1, 2].map((map) => indices.map((head) => {
      const place = map * heads + head;
      const y = product(columns(x, dim, head * width, width), part(weight, place, width * width), width);
      return bias ? addToRows(y, part(bias, place, width)) : y;
    }));
  }

  /** Bias of a head's scores, (N, N), of positions that act by one; nothing otherwise. */
  bias(name, head) {
    const { position, grid: [rows, columns], prefix } = this.config;
    if (position !== "relative" && position !== "alibi2d") return null;
    const tokens = prefix + rows * columns, spans = [2 * rows - 1, 2 * columns - 1];
    const table = this.weights[`${name}.relation.table`], special = this.weights[`${name}.relation.prefix`];
    const bias = new Float32Array(tokens ** 2);
    for (let query = 0; query < tokens; query++) {
      for (let key = 0; key < tokens; key++) {
        const place = query * tokens + key;
        if (query < prefix || key < prefix) {
          const kind = query >= prefix ? 1 : key >= prefix ? 0 : 2; // by patches, for patches, among the prefix
          bias[place] = special ? special[3 * head + kind] : 0;
          continue;
        }
        const from = query - prefix, to = key - prefix;
        const down = Math.floor(from / columns) - Math.floor(to / columns), right = (from % columns) - (to % columns);
        bias[place] = position === "relative"
          ? table[(head * spans[0] + down + rows - 1) * spans[1] + right + columns - 1]
          : -this.config.slopes[head] * Math.hypot(down, right);
      }
    }
    return bias;
  }

  /** Radians per patch of each pair of channels, along columns and along rows. */
  frequencies(name, head) {
    if (this.config.position === "rope") return this.config.frequencies;
    const learned = this.weights[`${name}.relation.frequencies`]; // (2, heads, pairs)
    const { dim, heads } = this.config;
    return [head, heads + head].map((place) => part(learned, place, dim / heads / 2));
  }

  /** Queries or keys of a head, (N, D / heads): neighbouring channels of patches rotated by their column and row. */
  rotated(x, [alongColumns, alongRows]) {
    const { grid: [rows, columns], prefix } = this.config;
    const pairs = alongColumns.length, y = x.slice();
    for (let patch = 0; patch < rows * columns; patch++) {
      for (let pair = 0; pair < pairs; pair++) {
        const angle = (patch % columns) * alongColumns[pair] + Math.floor(patch / columns) * alongRows[pair];
        const cos = Math.cos(angle), sin = Math.sin(angle), place = 2 * ((prefix + patch) * pairs + pair);
        y[place] = x[place] * cos - x[place + 1] * sin;
        y[place + 1] = x[place + 1] * cos + x[place] * sin;
      }
    }
    return y;
  }

  mlp(x, name) {
    const hidden = this.linear(x, `${name}.fc1`);
    return this.linear(ACTIVATIONS[this.config.mlp](hidden, this.weights[`${name}.fc1.bias`].length), `${name}.fc2`);
  }

  // Pool: (N, D) -> (1, D) ------------------------------------------------------------------------------------------

  pool(x) {
    const { dim, prefix, pool } = this.config;
    if (pool === "cls") return x.slice(0, dim);
    const patches = x.subarray(prefix * dim);
    return pool === "mean" ? meanRow(patches, dim) : this.attentionPool(patches);
  }

  attentionPool(patches) {
    const { dim, heads } = this.config, width = dim / heads, count = patches.length / dim;
    const query = this.linear(this.weights["attn_pool.latent"], "attn_pool.q");
    const keysAndValues = this.linear(patches, "attn_pool.kv");
    const output = new Float32Array(dim);
    for (let head = 0; head < heads; head++) {
      const keys = columns(keysAndValues, 2 * dim, head * width, width);
      const values = columns(keysAndValues, 2 * dim, dim + head * width, width);
      const weights = product(part(query, head, width), keys, width).map((score) => score * width ** -0.5);
      softmax(weights, count);
      this.poolAttention.push(weights);
      output.set(product(weights, transposed(values, width), count), head * width);
    }
    const x = this.linear(output, "attn_pool.proj");
    return add(this.mlp(this.norm(x, "attn_pool.norm"), "attn_pool.mlp"), x);
  }

  // Where it attends, after `forward` -------------------------------------------------------------------------------

  /**
   * What each head of a block attends to among the patches, by head, (P,).
   * @param block  its index; that of the last block and one more is the pool, with pool=map
   * @param patch  whose attention; null: the class token's if the head reads it, otherwise the mean over all patches
   */
  maps(block, patch = null) {
    const { prefix, pool } = this.config;
    if (block === this.attention.length) return this.poolAttention;
    return this.attention[block].map((weights) => {
      const tokens = Math.sqrt(weights.length);
      if (patch === null && pool !== "cls") return meanRow(weights.subarray(prefix * tokens), tokens).subarray(prefix);
      return part(weights, patch === null ? 0 : prefix + patch, tokens).slice(prefix);
    });
  }

  /** Share of each patch in what the head reads, (P,), by attention rollout (arXiv:2005.00928, section 3). */
  rollout() {
    const { prefix, grid: [rows, columns], pool, residual } = this.config;
    const tokens = prefix + rows * columns, attended = residual ? 1 / 2 : 1; // the residual path counts as much as attention
    let shares = new Float32Array(tokens);
    if (pool === "cls") shares[0] = 1;
    else if (pool === "mean") shares.fill(1 / (rows * columns), prefix);
    else for (const weights of this.poolAttention) {
      for (let patch = 0; patch < weights.length; patch++) shares[prefix + patch] += weights[patch] / this.poolAttention.length;
    }
    for (const maps of this.attention.toReversed()) {
      const before = shares.map((share) => share * (1 - attended));
      for (const weights of maps) {
        for (let query = 0; query < tokens; query++) {
          const share = (shares[query] * attended) / maps.length;
          if (share) for (let key = 0; key < tokens; key++) before[key] += share * weights[query * tokens + key];
        }
      }
      shares = before;
    }
    const patches = shares.slice(prefix);
    const total = patches.reduce((sum, share) => sum + share, 0);
    return patches.map((share) => share / total);
  }

  // Layers ----------------------------------------------------------------------------------------------------------

  has(name) {
    return `${name}.weight` in this.weights;
  }

  /** (rows, inputs) -> (rows, outputs). */
  linear(x, name) {
    const weight = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    const y = product(x, weight, weight.length / this.config.shapes[`${name}.weight`][0]);
    return bias ? addToRows(y, bias) : y;
  }

  norm(x, name) {
    const weight = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    if (!weight) return x;
    if (`${name}.running_mean` in this.weights) return this.batchNorm(x, name, this.config.norm_eps);
    const width = weight.length, y = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += width) {
      let mean = 0, square = 0;
      if (this.config.norm === "layernorm") {
        for (let index = 0; index < width; index++) mean += x[start + index];
        mean /= width;
      }
      for (let index = 0; index < width; index++) square += (x[start + index] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / width + this.config.norm_eps);
      for (let index = 0; index < width; index++) {
        y[start + index] = (x[start + index] - mean) * scale * weight[index] + (bias ? bias[index] : 0);
      }
    }
    return y;
  }

  batchNorm(x, name, eps) {
    const [weight, bias, mean, variance] = ["weight", "bias", "running_mean", "running_var"].map(
      (which) => this.weights[`${name}.${which}`],
    );
    const scale = weight.map((value, channel) => value / Math.sqrt(variance[channel] + eps));
    return x.map((value, index) => {
      const channel = index % scale.length;
      return (value - mean[channel]) * scale[channel] + bias[channel];
    });
  }

  layerScale(x, name) {
    const gamma = this.weights[`${name}.gamma`];
    return gamma ? x.map((value, index) => value * gamma[index % gamma.length]) : x;
  }
}

// Activations: (rows, hidden) -> the same, or half as wide for swiglu -------------------------------------------------

const ACTIVATIONS = {
  gelu: (x) => x.map((value) => (value * (1 + erf(value * Math.SQRT1_2))) / 2),
  gelu_tanh: (x) => x.map((v) => (v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)))) / 2),
  relu: (x) => x.map((value) => Math.max(0, value)),
  swiglu: (x, width) => {
    const gate = columns(x, width, 0, width / 2), values = columns(x, width, width / 2, width / 2);
    return values.map((value, index) => (value * gate[index]) / (1 + Math.exp(-gate[index])));
  },
};

/** The error function to 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26. */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - tail * Math.exp(-x * x));
}

// Tables --------------------------------------------------------------------------------------------------------------

/**
 * a b^T: (rows, inner), (columns, inner) -> (rows, columns). In tiles of 4 x 4, whose sums stay in registers; the last
 * tile of a row or column overlaps the one before.
 */
function product(a, b, inner) {
  const rows = a.length / inner, width = b.length / inner, result = new Float32Array(rows * width);
  if (rows < 4 || width < 4) return smallProduct(a, b, inner, result);
  for (let column = 0; column < width; column += 4) {
    const left = Math.min(column, width - 4);
    const b0 = left * inner, b1 = b0 + inner, b2 = b1 + inner, b3 = b2 + inner;
    for (let row = 0; row < rows; row += 4) {
      const top = Math.min(row, rows - 4);
      const a0 = top * inner, a1 = a0 + inner, a2 = a1 + inner, a3 = a2 + inner;
      let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
      let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
      for (let k = 0; k < inner; k++) {
        const x0 = a[a0 + k], x1 = a[a1 + k], x2 = a[a2 + k], x3 = a[a3 + k];
        const y0 = b[b0 + k], y1 = b[b1 + k], y2 = b[b2 + k], y3 = b[b3 + k];
        s00 += x0 * y0; s01 += x0 * y1; s02 += x0 * y2; s03 += x0 * y3;
        s10 += x1 * y0; s11 += x1 * y1; s12 += x1 * y2; s13 += x1 * y3;
        s20 += x2 * y0; s21 += x2 * y1; s22 += x2 * y2; s23 += x2 * y3;
        s30 += x3 * y0; s31 += x3 * y1; s32 += x3 * y2; s33 += x3 * y3;
      }
      let place = top * width + left;
      result[place] = s00; result[place + 1] = s01; result[place + 2] = s02; result[place + 3] = s03;
      place += width;
      result[place] = s10; result[place + 1] = s11; result[place + 2] = s12; result[place + 3] = s13;
      place += width;
      result[place] = s20; result[place + 1] = s21; result[place + 2] = s22; result[place + 3] = s23;
      place += width;
      result[place] = s30; result[place + 1] = s31; result[place + 2] = s32; result[place + 3] = s33;
    }
  }
  return result;
}

function smallProduct(a, b, inner, result) {
  const width = b.length / inner;
  for (let place = 0; place < result.length; place++) {
    const row = Math.floor(place / width) * inner, column = (place % width) * inner;
    let sum = 0;
    for (let k = 0; k < inner; k++) sum += a[row + k] * b[column + k];
    result[place] = sum;
  }
  return result;
}

/** Adds `y` to `x`, and returns it. */
function add(x, y) {
  for (let index = 0; index < x.length; index++) x[index] += y[index];
  return x;
}

/** Adds `row` to every row of `x`, and returns it. */
function addToRows(x, row) {
  for (let start = 0; start < x.length; start += row.length) {
    for (let index = 0; index < row.length; index++) x[start + index] += row[index];
  }
  return x;
}

/** Replaces every row by its softmax. */
function softmax(x, width) {
  for (let start = 0; start < x.length; start += width) {
    const row = x.subarray(start, start + width);
    const largest = row.reduce((most, value) => Math.max(most, value), -Infinity);
    let sum = 0;
    for (let index = 0; index < width; index++) sum += row[index] = Math.exp(row[index] - largest);
    for (let index = 0; index < width; index++) row[index] /= sum;
  }
  return x;
}

function meanRow(x, width) {
  const mean = new Float32Array(width), rows = x.length / width;
  for (let index = 0; index < x.length; index++) mean[index % width] += x[index] / rows;
  return mean;
}

/** The `index`-th stretch of `length` values, not copied. */
function part(x, index, length) {
  return x.subarray(index * length, (index + 1) * length);
}

/** (rows, width) -> its columns from `start` on, (rows, count). */
function columns(x, width, start, count) {
  const y = new Float32Array((x.length / width) * count);
  for (let row = 0; row * width < x.length; row++) {
    y.set(x.subarray(row * width + start, row * width + start + count), row * count);
  }
  return y;
}

function setColumns(x, width, start, y, count) {
  for (let row = 0; row * width < x.length; row++) x.set(part(y, row, count), row * width + start);
}

/** (rows, width) -> (width, rows). */
function transposed(x, width) {
  const rows = x.length / width, y = new Float32Array(x.length);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < width; column++) y[column * rows + row] = x[row * width + column];
  }
  return y;
}

// Images, (H * W, channels); a size, window or stride is [down, right] ------------------------------------------------

/** Windows of an image, padded with zeros: (windows, channels * h * w), channel by channel as torch flattens them. */
function unfold(image, [height, width], channels, window, stride, padding = 0) {
  const [rows, across] = [height, width].map((side, axis) => Math.floor((side + 2 * padding - window[axis]) / stride[axis]) + 1);
  const patches = new Float32Array(rows * across * channels * window[0] * window[1]);
  let place = 0;
  for (let patch = 0; patch < rows * across; patch++) {
    const top = Math.floor(patch / across) * stride[0] - padding, left = (patch % across) * stride[1] - padding;
    for (let channel = 0; channel < channels; channel++) {
      for (let y = top; y < top + window[0]; y++) {
        for (let x = left; x < left + window[1]; x++, place++) {
          if (y >= 0 && x >= 0 && y < height && x < width) patches[place] = image[(y * width + x) * channels + channel];
        }
      }
    }
  }
  return patches;
}

/** The image and four copies, shifted by `half` a patch along the diagonals: (H * W, 5 * channels). */
function withShifted(image, [height, width], channels, [high, wide]) {
  const shifts = [[0, 0], [-high, -wide], [-high, wide], [high, -wide], [high, wide]];
  const result = new Float32Array(5 * image.length);
  for (let pixel = 0; pixel < height * width; pixel++) {
    shifts.forEach(([down, right], index) => {
      const y = Math.floor(pixel / width) + down, x = (pixel % width) + right;
      if (y < 0 || x < 0 || y >= height || x >= width) return;
      const from = (y * width + x) * channels;
      result.set(image.subarray(from, from + channels), (pixel * 5 + index) * channels);
    });
  }
  return result;
}

// Weights -------------------------------------------------------------------------------------------------------------

/** base64 texts -> their bytes, one after the other, as an ArrayBuffer. */
function decoded(chunks) {
  const texts = chunks.map((chunk) => atob(chunk.trim()));
  const bytes = new Uint8Array(texts.reduce((count, text) => count + text.length, 0));
  let place = 0;
  for (const text of texts) for (let index = 0; index < text.length; index++) bytes[place++] = text.charCodeAt(index);
  return bytes.buffer;
}

/** An ArrayBuffer of finite numbers in half precision (IEEE 754) -> Float32Array. */
function fromFloat16(buffer) {
  const known = Float32Array.from({ length: 2 ** 16 }, (_, bits) => {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  });
  return Float32Array.from(new Uint16Array(buffer), (bits) => known[bits]);
}
