//! The part of XML that hwloc writes: elements, attributes, text. No namespaces, no declared entities.
//!
//! It is read here and not by libhwloc, which takes a description at its word: version 2.9 ends with a
//! segmentation fault on a file with one misspelled attribute.

use crate::model::ids::clip;

/// Elements inside elements; a description of a machine nests about twenty deep.
const DEPTH_LIMIT: usize = 128;

/// Attributes of an element; hwloc writes up to about fifteen.
const ATTRIBUTES_LIMIT: usize = 64;

/// An element, with everything inside it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
    /// All text directly inside, joined.
    pub(super) text: String,
    /// Line of its start, from 1 up.
    pub(super) line: usize,
}

impl Element {
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What is wrong with a text, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct XmlError {
    pub(super) line: usize,
    pub(super) reason: String,
}

/// Reads a whole document and returns its root element.
pub(super) fn parse(text: &str) -> Result<Element, XmlError> {
    let mut reader = Reader { text, at: 0, line: 1 };
    // Elements begun and not ended; the first holds the root when it has ended.
    let mut open = vec![Element::default()];
    while let Some(begin) = reader.rest().find('<') {
        let content = reader.take(begin);
        if let [_, .., inner] = open.as_mut_slice() {
            inner.text += &reader.unescape(content)?;
        } else if !content.trim().is_empty() {
            return Err(reader.error("text outside of the root element"));
        }
        reader.take(1);
        match reader.rest().bytes().next() {
            Some(b'?') => reader.skip_past("?>")?,
            Some(b'!') if reader.rest().starts_with("!--") => reader.skip_past("-->")?,
            Some(b'!') => reader.skip_past(">")?,
            Some(b'/') => {
                reader.take(1);
                let name = reader.name()?;
                reader.space();
                reader.expect(">")?;
                reader.close(&mut open, name)?;
            }
            _ => reader.open(&mut open)?,
        }
    }
    if !reader.rest().trim().is_empty() || open.len() != 1 {
        return Err(reader.error("it ends in the middle"));
    }
    match open.pop().map(|document| document.children) {
        Some(mut roots) if roots.len() == 1 => Ok(roots.remove(0)),
        _ => Err(reader.error("it does not have exactly one root element")),
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn error(&self, reason: &str) -> XmlError {
        XmlError { line: self.line, reason: reason.to_owned() }
    }

    /// Steps over `bytes` bytes, which end at a character's boundary.
    fn take(&mut self, bytes: usize) -> &'t str {
        let taken = &self.rest()[..bytes];
        self.at += bytes;
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count();
        taken
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest().find(|c| !wanted(c)).unwrap_or(self.rest().len());
        self.take(end)
    }

    fn space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    fn skip_past(&mut self, end: &str) -> Result<(), XmlError> {
        let found = self.rest().find(end).ok_or_else(|| self.error(&format!("no {end} follows")))?;
        self.take(found + end.len());
        Ok(())
    }

    fn expect(&mut self, text: &str) -> Result<(), XmlError> {
        if !self.rest().starts_with(text) {
            return Err(self.error(&format!("{text} is missing")));
        }
        self.take(text.len());
        Ok(())
    }

    fn name(&mut self) -> Result<&'t str, XmlError> {
        let name = self.take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'));
        if name.is_empty() { Err(self.error("a name is missing")) } else { Ok(name) }
    }

    /// A start tag, after its `<`.
    fn open(&mut self, open: &mut Vec<Element>) -> Result<(), XmlError> {
        if open.len() > DEPTH_LIMIT {
            return Err(self.error(&format!("elements are nested over {DEPTH_LIMIT} deep")));
        }
        let line = self.line;
        let mut element = Element { name: self.name()?.to_owned(), line, ..Element::default() };
        loop {
            self.space();
            if self.rest().starts_with("/>") {
                self.take(2);
                return self.finish(open, element);
            }
            if self.rest().starts_with('>') {
                self.take(1);
                open.push(element);
                return Ok(());
            }
            let name = self.name()?.to_owned();
            self.space();
            self.expect("=")?;
            self.space();
            let quote = if self.rest().starts_with('\'') { "'" } else { "\"" };
            self.expect(quote)?;
            let end = self.rest().find(quote).ok_or_else(|| self.error("a value does not end"))?;
            let raw = self.take(end);
            let value = self.unescape(raw)?;
            self.take(1);
            if element.attribute(&name).is_some() {
                return Err(self.error(&format!("attribute {} is given twice", clip(&name))));
            }
            if element.attributes.len() == ATTRIBUTES_LIMIT {
                return Err(self.error(&format!("an element has over {ATTRIBUTES_LIMIT} attributes")));
            }
            element.attributes.push((name, value));
        }
    }

    fn close(&self, open: &mut Vec<Element>, name: &str) -> Result<(), XmlError> {
        match open.pop() {
            Some(element) if element.name == name && !open.is_empty() => self.finish(open, element),
            _ => Err(self.error(&format!("</{}> ends what did not begin", clip(name)))),
        }
    }

    fn finish(&self, open: &mut [Element], element: Element) -> Result<(), XmlError> {
        let outer = open.last_mut().ok_or_else(|| self.error("an element outside of the document"))?;
        outer.children.push(element);
        Ok(())
    }

    /// Resolves the five predefined entities and characters by number.
    fn unescape(&self, raw: &str) -> Result<String, XmlError> {
        let mut plain = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some((before, after)) = rest.split_once('&') {
            plain += before;
            let (entity, after) =
                after.split_once(';').ok_or_else(|| self.error("an entity does not end with ;"))?;
            let number = entity.strip_prefix('#').and_then(|number| match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            });
            let character = match entity {
                "lt" => Some('<'),
                "gt" => Some('>'),
                "amp" => Some('&'),
                "quot" => Some('"'),
                "apos" => Some('\''),
                _ => number.and_then(char::from_u32),
            };
            let unknown = || self.error(&format!("&{}; is not an entity of XML's own", clip(entity)));
            plain.push(character.ok_or_else(unknown)?);
            rest = after;
        }
        Ok(plain + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read() {
        let root = parse(
            "<?xml version=\"1.0\"?>\n<!DOCTYPE t SYSTEM \"hwloc2.dtd\">\n<!-- <a> -->\n\
             <t version='2.0'>\n <o name=\"&lt;a&#x42;&#67;&quot;\"/>\n <o>1 2<!-- x --> 3</o>\n</t>\n",
        )
        .unwrap();
        assert_eq!((root.name.as_str(), root.attribute("version"), root.line), ("t", Some("2.0"), 4));
        assert_eq!(root.children[0].attribute("name"), Some("<aBC\""));
        assert_eq!((root.children[1].text.as_str(), root.children[1].line), ("1 2 3", 6));
        assert_eq!(root.attribute("absent"), None);
    }

    #[test]
    fn what_is_no_document_is_refused_with_its_line() {
        for text in [
            "",
            "x",
            "<",
            "<a",
            "<a>",
            "<a/><b/>",
            "</a>",
            "<a></b>",
            "<a></a></a>",
            "<a x/>",
            "<a x=1/>",
            "<a x=\"1/>",
            "<a x=\"1\" x=\"2\"/>",
            "<a>&b;</a>",
            "<a>&amp</a>",
            "<a>&#xd800;</a>",
            "<!-- ",
            "<?",
            "<a/>x",
            "<>",
            "< a/>",
            "<a\u{e9}",
            "x<a/>",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse("<a>\n<b>\n</c></a>").unwrap_err().line, 3);
        let many: String = (0..=ATTRIBUTES_LIMIT).map(|at| format!(" a{at}=\"\"")).collect();
        assert!(parse(&format!("<a{many}/>")).unwrap_err().reason.contains("attributes"));
        let deep = "<a>".repeat(100_000);
        assert!(parse(&deep).unwrap_err().reason.contains("nested"));
    }
}
