//! Rectangles and text as SVG.

use std::fmt::Write;

use crate::model::export::escape;

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// How text is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) middle: bool,
    pub(super) color: &'static str,
}

impl Type {
    pub(super) const fn plain(size: f64) -> Type {
        Type { size, bold: false, middle: false, color: "#222" }
    }

    pub(super) const fn bold(size: f64) -> Type {
        Type { bold: true, ..Type::plain(size) }
    }

    pub(super) const fn faint(size: f64) -> Type {
        Type { color: "#666", ..Type::plain(size) }
    }
}

/// Width of a letter over its height, on the wide side: what is measured by it fits.
const LETTER: f64 = 0.56;

/// How wide a text is at most.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

/// As much of the text as is no wider, with an ellipsis where some is cut.
pub(super) fn fitting(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let letters = (width / (size * LETTER)).max(1.0) as usize;
    text.chars().take(letters.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// The text cut at spaces into lines no wider; a word that is wider has a line of its own.
pub(super) fn lines(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(word, size) + size < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What is drawn so far.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    svg: String,
}

impl Canvas {
    /// A rectangle; `title` is shown when one points at it.
    pub(super) fn rect(&mut self, at: Rect, fill: &str, stroke: &str, title: Option<&str>) {
        let Rect { x, y, width, height } = at;
        let _ = write!(
            self.svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\" fill=\"{fill}\" \
             stroke=\"{stroke}\""
        );
        let _ = match title {
            Some(title) => writeln!(self.svg, "><title>{}</title></rect>", escape(title)),
            None => writeln!(self.svg, "/>"),
        };
    }

    /// A text whose base line begins at (x, y), or has its middle there.
    pub(super) fn text(&mut self, x: f64, y: f64, style: Type, text: &str) {
        let Type { size, color, .. } = style;
        let weight = if style.bold { " font-weight=\"bold\"" } else { "" };
        let anchor = if style.middle { " text-anchor=\"middle\"" } else { "" };
        let text = escape(text);
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\"{weight}{anchor}>{text}</text>"
        );
    }

    /// Puts what another canvas has on top.
    pub(super) fn add(&mut self, other: Canvas) {
        self.svg += &other.svg;
    }

    /// The whole picture.
    pub(super) fn finish(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n{}</svg>\n",
            self.svg
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_its_place() {
        assert_eq!(fitting("mlx5_0", 10.0, 100.0), "mlx5_0");
        let cut = fitting("a name that is far too long", 10.0, 60.0);
        assert!(cut.ends_with('\u{2026}') && text_width(&cut, 10.0) <= 60.0, "{cut}");
        let lines = lines("one two three four five", 10.0, 80.0);
        assert!(lines.len() > 1 && lines.iter().all(|line| text_width(line, 10.0) <= 80.0), "{lines:?}");
        assert_eq!(lines.join(" "), "one two three four five");
    }

    #[test]
    fn names_cannot_end_the_text_that_holds_them() {
        let mut canvas = Canvas::default();
        canvas.text(0.0, 0.0, Type::plain(10.0), "</text><script>\"&");
        let svg = canvas.finish(1.0, 1.0);
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;&quot;&amp;</text>"), "{svg}");
    }
}
