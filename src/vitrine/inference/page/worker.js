"use strict";
// The page's worker: loads the model once, then answers each request with what the model makes of one image.

let model = null;
let pixels = null;
let logits = null;

/**
 * Requests: {load: {config, chunks}}, once; then {picture} or {drawing}, an image as in prepare.js, {sample}, a picture
 * that is prepared already, or none of them, to look at the same image in another way; with the `block` and the `patch`
 * whose attention is asked for.
 * Replies: {pixels, probabilities, logits, maps, rollout, milliseconds}, {empty: true} for an empty drawing, or {error}.
 */
self.onmessage = ({ data: request }) => {
  try {
    self.postMessage(answered(request));
  } catch (error) {
    self.postMessage({ error: error instanceof RangeError ? "there is not enough memory for it" : String(error.message) });
  }
};

function answered({ load, picture, drawing, sample, block, patch }) {
  if (load) {
    model = new VisionTransformer(load.config, load.chunks);
    return { ready: true };
  }
  const start = performance.now();
  if (picture || drawing || sample) {
    const preparation = model.config.preparation;
    const prepared = sample
      ? toChannels(sample.pixels, preparation.channels)
      : picture ? preparePicture(picture, preparation) : prepareDrawing(drawing, preparation);
    if (!prepared) return { empty: true };
    pixels = prepared;
    logits = model.forward(pixels);
  }
  const probabilities = softmax(logits.slice(), logits.length);
  const answer = { pixels, logits, probabilities, maps: model.maps(block, patch), rollout: model.rollout() };
  return { ...answer, milliseconds: performance.now() - start };
}
