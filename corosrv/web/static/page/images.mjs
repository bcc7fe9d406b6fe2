// Pictures that people paste, drop or choose: checked, made smaller where they are large, as data URLs.

export const MOST_IMAGES = 8;
const MOST_FILE = 30_000_000; // bytes
const LONGEST = 1568; // pixels of a side
const KEPT = 400_000; // bytes of a file that is sent as it is
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

// A file as a data URL. Throws with words for people.
export async function readImage(file) {
  const name = file.name || "the picture";
  if (file.size > MOST_FILE) throw new Error(`${name} is larger than ${MOST_FILE / 1e6} MB`);
  if (!file.type.startsWith("image/")) throw new Error(`${name} is no picture`);
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} cannot be read as a picture`);
  }
  try {
    const scale = Math.min(1, LONGEST / Math.max(picture.width, picture.height));
    if (scale === 1 && file.size <= KEPT && TYPES.includes(file.type)) return await dataUrl(file);
    return await smaller(picture, scale);
  } finally {
    picture.close();
  }
}

async function smaller(picture, scale) {
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(picture.width * scale)), Math.max(1, Math.round(picture.height * scale)));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // behind what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return dataUrl(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.88 }));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    Object.assign(reader, { onload: () => resolve(reader.result), onerror: () => reject(new Error("the picture cannot be read")) });
    reader.readAsDataURL(blob);
  });
}

export function imagesOf(transfer) {
  return [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
}
