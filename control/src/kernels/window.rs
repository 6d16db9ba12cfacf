//! Windows that slide over images: where they are, for convolutions and pools.

use super::contract::OpError;
use super::registry::BuildError;
use crate::core::graph::Node;

/// How a window fits an image at its edges.
#[derive(Clone, Debug)]
pub(super) enum Padding {
    /// As many places as strides fit, with zeros around.
    Same,
    /// Only where the window is inside.
    Valid,
    /// Zeros above, below, left and right.
    Explicit([usize; 4]),
}

/// What the attributes say of a window over height and width.
#[derive(Clone, Debug)]
pub(super) struct Sliding {
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: Padding,
}

/// Along one dimension of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slide {
    /// Size of the image.
    pub(super) size: usize,
    /// Size of the window.
    pub(super) window: usize,
    /// Places of the window.
    pub(super) places: usize,
    stride: usize,
    dilation: usize,
    before: usize,
}

impl Slide {
    /// The element of the image that element `in_window` of the window is at, in place `place`; `None` outside.
    pub(super) fn at(&self, place: usize, in_window: usize) -> Option<usize> {
        let at = place * self.stride + in_window * self.dilation;
        at.checked_sub(self.before).filter(|at| *at < self.size)
    }
}

/// The height and width of a list of four, whose others must be 1.
pub(super) fn height_and_width(node: &Node, attr: &str) -> Result<[usize; 2], BuildError> {
    let wrong = |problem: &str| BuildError::from(node.attrs.wrong(attr, problem));
    match node.attrs.ints(attr)? {
        [1, height, width, 1] => {
            let positive = |value: i64| {
                // A window past this is past any image.
                let value = usize::try_from(value).ok().filter(|value| (1..=1 << 30).contains(value));
                value.ok_or_else(|| wrong("holds a size that is not between 1 and 2^30"))
            };
            Ok([positive(*height)?, positive(*width)?])
        }
        [_, _, _, _] => {
            Err(wrong("is not 1 in the batch and in the channels, which is all that is computed"))
        }
        _ => Err(wrong("must specify 4 dimensions")),
    }
}

impl Sliding {
    /// Reads strides, padding and, where there are such, dilations and explicit paddings.
    pub(super) fn of(node: &Node) -> Result<Sliding, BuildError> {
        if node.attrs.text("data_format")? != "NHWC" {
            let problem = "is not NHWC, which is the only format that is computed";
            return Err(node.attrs.wrong("data_format", problem).into());
        }
        let padding = match node.attrs.text("padding")? {
            "SAME" => Padding::Same,
            "VALID" => Padding::Valid,
            "EXPLICIT" => match node.attrs.ints("explicit_paddings")? {
                [0, 0, top, bottom, left, right, 0, 0] => {
                    let sizes = [*top, *bottom, *left, *right];
                    if sizes.iter().any(|size| !(0..1 << 30).contains(size)) {
                        return Err(node
                            .attrs
                            .wrong("explicit_paddings", "holds a size out of range")
                            .into());
                    }
                    Padding::Explicit(sizes.map(|size| size as usize))
                }
                _ => {
                    return Err(node
                        .attrs
                        .wrong("explicit_paddings", "pads batch or channels, or is not 8 sizes")
                        .into());
                }
            },
            _ => return Err(node.attrs.wrong("padding", "is none of SAME, VALID, EXPLICIT").into()),
        };
        let dilations =
            if node.attrs.get("dilations").is_some() { height_and_width(node, "dilations")? } else { [1, 1] };
        Ok(Sliding { strides: height_and_width(node, "strides")?, dilations, padding })
    }

    /// The places of a window of this height and width over an image.
    pub(super) fn over(&self, image: [usize; 2], window: [usize; 2]) -> Result<[Slide; 2], OpError> {
        let mut slides = [None; 2];
        for (dim, slide) in slides.iter_mut().enumerate() {
            let (size, window, stride, dilation) =
                (image[dim], window[dim], self.strides[dim], self.dilations[dim]);
            if window == 0 {
                return Err(OpError::invalid("a window must have at least one element in each dimension"));
            }
            let reach = (window - 1).saturating_mul(dilation).saturating_add(1);
            let inside = |size: usize| size.checked_sub(reach).map_or(0, |free| free / stride + 1);
            let (places, before) = match self.padding {
                Padding::Valid => (inside(size), 0),
                Padding::Same => {
                    let places = size.div_ceil(stride);
                    let needed = (places.max(1) - 1).saturating_mul(stride).saturating_add(reach);
                    (places, needed.saturating_sub(size) / 2)
                }
                Padding::Explicit(pads) => {
                    let [before, after] = [pads[2 * dim], pads[2 * dim + 1]];
                    (inside(size.saturating_add(before).saturating_add(after)), before)
                }
            };
            if places == 0 && size > 0 {
                return Err(OpError::invalid(format!(
                    "Computed output size would be negative: the window, of size {reach}, does not fit an image of size {size}"
                )));
            }
            *slide = Some(Slide { size, window, places, stride, dilation, before });
        }
        match slides {
            [Some(rows), Some(columns)] => Ok([rows, columns]),
            _ => Err(OpError::internal("a window has two dimensions")),
        }
    }
}
