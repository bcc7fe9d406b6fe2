"""Decodes images to RGB with Pillow, as they are to be seen: turned by their EXIF orientation, and on white paper.

It is called in the process that corosrv.images.decoder runs, and in no server: a file may end the decoder.

Transparent images are put on white, as other servers of vision models do and as pages show them. llama.cpp's decoder
drops the alpha channel instead: a drawing in black ink on nothing becomes all black.
"""

from __future__ import annotations

import functools
import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

from corosrv.base.errors import InvalidImage, NotOffered
from corosrv.images.recognition import ImageFormat

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_SIDE = 1 << 15  # pixels; what the encoder takes, see corosrv.images.encoder.mtmd
_ORIENTATION = 0x0112
# How a picture is turned to stand upright, by its EXIF orientation; members of Pillow's Transpose.
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def check_dimensions(width: int, height: int, max_pixels: int, param: str) -> None:
    """Raises InvalidImage for an image without pixels, and for one with more than `max_pixels`."""
    if width < 1 or height < 1:
        raise InvalidImage(f"{param}: the image has no pixels: it is {width} x {height}", param)
    if width * height > max_pixels:
        words = f"{width} x {height} pixels, and {max_pixels} in all are allowed"
        raise InvalidImage(f"{param}: the image has {words}", param)
    if max(width, height) > MAX_SIDE:
        raise InvalidImage(f"{param}: the image is {width} x {height}, and a side has {MAX_SIDE} at most", param)


@functools.cache  # looking for it takes as long as the rest of an image that was decoded lately
def check_pillow() -> None:
    """Raises NotOffered where Pillow is not installed. Looks for it once, if it is there."""
    if find_spec("PIL") is None:
        raise NotOffered("this server cannot decode images: it needs Pillow (pip install 'corosrv[images]')")


def decode(
    data: bytes, image_format: ImageFormat, n_pixels: int, param: str, max_side: int = 0
) -> tuple[int, int, bytes]:
    """Returns width, height and pixels of an image whose dimensions are checked; of an animation, of the first frame.

    `n_pixels`: of its header. `max_side`: see DecodeImage. Computes for up to a second. Raises InvalidImage for a file
    that is truncated or damaged, or takes too much memory, and for a GIF whose frame has more pixels than its header
    says.
    """
    import PIL.Image

    try:
        # No other decoder of Pillow's looks at the file.
        with PIL.Image.open(io.BytesIO(data), formats=[image_format.value]) as picture:
            if picture.width * picture.height > n_pixels:
                raise InvalidImage(f"{param}: the {image_format.name} has a frame larger than its header says", param)
            picture.load()
            upright = _rgb(_upright(picture))
        if max_side and max(upright.size) > max_side:
            upright.thumbnail((max_side, max_side))
        return *upright.size, upright.tobytes()
    except InvalidImage:
        raise
    except MemoryError:
        raise InvalidImage(f"{param}: the {image_format.name} takes too much memory to be decoded", param) from None
    except Exception:  # Pillow's decoders raise whatever they stumble over
        raise InvalidImage(f"{param}: the {image_format.name} is truncated or damaged", param) from None


def _upright(picture: Picture) -> Picture:
    import PIL.Image

    try:
        method = _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # notes that cannot be read turn nothing
        return picture
    return picture if method is None else picture.transpose(PIL.Image.Transpose[method])


def _rgb(picture: Picture) -> Picture:
    import PIL.Image

    if picture.mode == "I;16":
        # Conversion would cut off all that is brighter than 255; the high byte of two, the second, is the brightness.
        picture = PIL.Image.frombytes("L", picture.size, picture.tobytes()[1::2])
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    paper = PIL.Image.new("RGB", picture.size, "white")
    paper.paste(picture, mask=picture.getchannel("A"))
    return paper
