// Pictures on the page that calls an op. The browser decodes a chosen picture to the .npy file that
// the form sends, and draws those outputs that are pictures: the server never decodes one.
"use strict";

const CHANNELS = [1, 3, 4];
const LEAST = 8; // width and height of an output from which on it is drawn

// A .npy file of bytes, version 1.0.
function npy(bytes, shape) {
  const dict = `{'descr': '|u1', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`;
  const header = dict.padEnd(Math.ceil((dict.length + 11) / 64) * 64 - 11) + "\n";
  const head = [0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, header.length & 255, header.length >> 8];
  return new Blob([new Uint8Array(head), header, bytes]);
}

// Height x width x 3 channels, or 4 if a pixel is not opaque.
async function decoded(file, mostBytes) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  if (3 * width * height > mostBytes) {
    throw new RangeError(`The picture has ${width} × ${height} pixels, more than a form may have`);
  }
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const rgba = context.getImageData(0, 0, width, height).data;
  if (rgba.some((value, i) => i % 4 === 3 && value !== 255)) return npy(rgba, [height, width, 4]);
  const rgb = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; from < rgba.length; from += 4, to += 3) {
    rgb[to] = rgba[from];
    rgb[to + 1] = rgba[from + 1];
    rgb[to + 2] = rgba[from + 2];
  }
  return npy(rgb, [height, width, 3]);
}

async function replacePicture(input) {
  const [file] = input.files;
  const said = input.parentElement.querySelector("[data-picture]");
  said.textContent = "";
  input.setCustomValidity("");
  if (!file || !file.type.startsWith("image/")) return;
  try {
    const content = await decoded(file, Number(input.form.dataset.mostBytes));
    const files = new DataTransfer();
    files.items.add(new File([content], `${file.name}.npy`));
    input.files = files.files;
    said.textContent = `${file.name} is sent as a .npy file of height × width × channels.`;
  } catch (error) {
    const why = error instanceof RangeError ? error.message : `The browser cannot read ${file.name} as a picture`;
    input.setCustomValidity(`${why}.`);
    said.textContent = `${why}.`;
    input.reportValidity();
  }
}

// Where the channels of a shape are, and its width and height; null if it is no picture.
function layout(shape) {
  const [a, b, c] = shape;
  let found = null;
  if (shape.length === 2) found = { height: a, width: b, channels: 1, pixel: 1, plane: 0 };
  else if (shape.length === 3 && CHANNELS.includes(c)) found = { height: a, width: b, channels: c, pixel: c, plane: 1 };
  else if (shape.length === 3 && CHANNELS.includes(a)) found = { height: b, width: c, channels: a, pixel: 1, plane: b * c };
  return found && Math.min(found.width, found.height) >= LEAST ? found : null;
}

function draw(link) {
  const shape = link.dataset.shape.split(",").map(Number);
  const found = layout(shape);
  if (!found) return;
  const { width, height, channels, pixel, plane } = found;
  const file = Uint8Array.from(atob(link.href.split(",")[1]), (letter) => letter.charCodeAt(0));
  const values = file.subarray(file.length - width * height * channels);
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * i + channel] = values[i * pixel + (channels === 1 ? 0 : channel) * plane];
    }
    image.data[4 * i + 3] = channels === 4 ? values[i * pixel + 3 * plane] : 255;
  }
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${link.dataset.name} as a picture`);
  canvas.getContext("2d").putImageData(image, 0, 0);
  document.getElementById("pictures").append(canvas);
  canvas.toBlob((blob) => {
    const download = document.createElement("a");
    download.href = URL.createObjectURL(blob);
    download.download = `${link.dataset.name}.png`;
    download.textContent = ".png";
    link.after(" ", download);
  });
}

document.addEventListener("DOMContentLoaded", () => {
  for (const input of document.querySelectorAll("form[data-most-bytes] input[type=file]")) {
    input.accept = ".npy,image/*";
    input.addEventListener("change", () => replacePicture(input));
    replacePicture(input); // a browser keeps the file when the page is loaded again
  }
  for (const hint of document.querySelectorAll(".with-scripts")) hint.hidden = false;
  for (const link of document.querySelectorAll("a[data-shape]")) draw(link);
});
