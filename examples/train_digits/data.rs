//! The handwritten digits: 8 x 8 pixels and the digit that each image shows (see `examples/data/README.md`).

/// Pixels of one image.
pub(crate) const PIXELS: usize = 64;
/// Digits to tell apart.
pub(crate) const CLASSES: usize = 10;
/// Every fifth image is held out, whoever trains and however often.
const HELD_OUT_EVERY: usize = 5;

/// Images and the digits that they show.
#[derive(Default)]
pub(crate) struct Images {
    /// [`PIXELS`] numbers from 0 to 1 for each image, one image after the other.
    pixels: Vec<f32>,
    labels: Vec<usize>,
}

impl Images {
    /// How many images.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The images of these numbers, one after the other.
    pub(crate) fn pick(&self, numbers: &[usize]) -> Images {
        let pixels = numbers.iter().flat_map(|&i| &self.pixels[i * PIXELS..(i + 1) * PIXELS]);
        let labels = numbers.iter().map(|&i| self.labels[i]);
        Images { pixels: pixels.copied().collect(), labels: labels.collect() }
    }

    pub(crate) fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    pub(crate) fn labels(&self) -> &[usize] {
        &self.labels
    }
}

/// The images to learn from, and those held out.
pub(crate) fn load() -> Result<(Images, Images), String> {
    parse(include_str!("../data/digits.txt"))
}

fn parse(table: &str) -> Result<(Images, Images), String> {
    let (mut train, mut held_out) = (Images::default(), Images::default());
    for (index, line) in table.lines().enumerate() {
        let broken = || format!("digits.txt, line {}: not {PIXELS} pixels and a digit", index + 1);
        let (pixels, label) = line.split_once(' ').ok_or_else(broken)?;
        let label: usize = label.parse().map_err(|_| broken())?;
        if pixels.len() != PIXELS || label >= CLASSES {
            return Err(broken());
        }
        let half = if (index + 1).is_multiple_of(HELD_OUT_EVERY) { &mut held_out } else { &mut train };
        for pixel in pixels.chars() {
            let dark = pixel.to_digit(17).ok_or_else(broken)?;
            half.pixels.push(dark as f32 / 16.0);
        }
        half.labels.push(label);
    }
    Ok((train, held_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_five_images_are_learned_from() {
        let (train, held_out) = load().unwrap();
        assert_eq!((train.len(), held_out.len()), (1438, 359));
        assert_eq!(train.pixels().len(), 1438 * PIXELS);
        assert!(train.pixels().iter().all(|p| (0.0..=1.0).contains(p)));
        assert_eq!(train.pick(&[1, 0]).labels(), [train.labels()[1], train.labels()[0]]);
    }

    #[test]
    fn a_broken_line_is_named() {
        for line in ["00 1", &format!("{} x", "0".repeat(64)), &format!("{} 1", "h".repeat(64))] {
            assert!(parse(line).err().unwrap().contains("line 1"), "{line}");
        }
    }
}
