//! Every value of a body with the path that leads to it, for what must look at all of them: hiding credentials,
//! comparing deliveries. Not on the way of a request: finding items is `json`, `xml` and `tree`.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::events::Event;

use super::form;
use super::json::{DEPTH_MAX, Scan, unescape};
use super::path::Step;
use super::tree::{NODES_MAX, Unread};
use super::trie::Trie;
use super::xml;

/// What kind of value was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Null,
    /// `true`, `false` or a number: its text is its value.
    Plain,
    /// A JSON string, quotes included in the span.
    Text,
    /// An object, an array, or an element with elements inside.
    Group,
    /// What stands inside an XML element that holds no other; its decoded text.
    Element(Vec<u8>),
    /// What stands between the quotes of an XML attribute.
    Attribute,
}

/// Meets every value of a JSON body, those inside of others first. Repeated members are met each.
pub(super) fn json(body: &[u8], met: &mut impl FnMut(&[Step], Shape, Range<usize>)) -> Result<(), Unread> {
    let trie = Trie::default();
    let mut walk = Json { scan: Scan::over(body, &trie), steps: Vec::new(), left: NODES_MAX, met };
    walk.value()?;
    walk.scan.end()
}

struct Json<'a, F> {
    scan: Scan<'a>,
    steps: Vec<Step>,
    /// How many more values may be met.
    left: usize,
    met: &'a mut F,
}

impl<F: FnMut(&[Step], Shape, Range<usize>)> Json<'_, F> {
    /// Recurses as deep as bodies may be nested.
    fn value(&mut self) -> Result<(), Unread> {
        self.left = self.left.checked_sub(1).ok_or(Unread::TooMany)?;
        let first = self.scan.peek()?;
        let start = self.scan.at;
        let shape = match first {
            b'{' => self.inside(b'}')?,
            b'[' => self.inside(b']')?,
            b'"' => {
                self.scan.string()?;
                Shape::Text
            }
            other => {
                self.scan.plain(other)?;
                if other == b'n' { Shape::Null } else { Shape::Plain }
            }
        };
        (self.met)(&self.steps, shape, start..self.scan.at);
        Ok(())
    }

    fn inside(&mut self, close: u8) -> Result<Shape, Unread> {
        if self.steps.len() >= DEPTH_MAX {
            return Err(Unread::TooDeep);
        }
        self.scan.at += 1;
        if self.scan.peek()? == close {
            self.scan.at += 1;
            return Ok(Shape::Group);
        }
        for position in 0.. {
            let step = if close == b'}' { self.member()? } else { Step::At(position) };
            self.steps.push(step);
            self.value()?;
            self.steps.pop();
            match self.scan.take()? {
                b',' => {}
                end if end == close => return Ok(Shape::Group),
                _ => break,
            }
        }
        Err(Unread::Malformed)
    }

    fn member(&mut self) -> Result<Step, Unread> {
        let name = self.scan.name()?;
        let name = unescape(name).ok_or(Unread::Malformed)?;
        Ok(Step::Member(String::from_utf8_lossy(&name).into()))
    }
}

/// Meets every element and attribute of an XML body; an attribute's last step begins with `@`.
pub(super) fn xml(body: &[u8], met: &mut impl FnMut(&[Step], Shape, Range<usize>)) -> Result<(), Unread> {
    let (mut reader, before) = xml::reader(body);
    let mut open: Vec<Open> = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    let (mut rooted, mut left) = (false, NODES_MAX);
    loop {
        let start = before + xml::offset(&reader)?;
        let event = reader.read_event().map_err(|_| Unread::Malformed)?;
        let end = before + xml::offset(&reader)?;
        match event {
            Event::Start(ref tag) | Event::Empty(ref tag) => {
                if open.len() >= DEPTH_MAX {
                    return Err(Unread::TooDeep);
                }
                left = left.checked_sub(1).ok_or(Unread::TooMany)?;
                match open.last_mut() {
                    Some(parent) => parent.text = None,
                    None if rooted => return Err(Unread::Malformed),
                    None => rooted = true,
                }
                steps.push(Step::Member(tag.local_name().into_inner().into()));
                attributes(body, start..end, &mut steps, met)?;
                if matches!(event, Event::Empty(_)) {
                    met(&steps, Shape::Element(Vec::new()), end..end);
                    steps.pop();
                } else {
                    open.push(Open { inside: end, text: Some(Vec::new()) });
                }
            }
            Event::End(_) => {
                let closed = open.pop().ok_or(Unread::Malformed)?;
                met(&steps, closed.text.map_or(Shape::Group, Shape::Element), closed.inside..start);
                steps.pop();
            }
            Event::Text(text) => add(&mut open, text.as_bytes())?,
            Event::CData(text) => add(&mut open, text.as_bytes())?,
            Event::GeneralRef(reference) => {
                let character = xml::resolve(&reference).ok_or(Unread::Malformed)?;
                add(&mut open, character.encode_utf8(&mut [0; 4]).as_bytes())?;
            }
            Event::DocType(_) => return Err(Unread::Malformed),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof if rooted && open.is_empty() => return Ok(()),
            Event::Eof => return Err(Unread::Malformed),
        }
    }
}

struct Open {
    inside: usize,
    /// `None` once it holds an element.
    text: Option<Vec<u8>>,
}

fn add(open: &mut [Open], more: &[u8]) -> Result<(), Unread> {
    match open.last_mut() {
        Some(Open { text: Some(text), .. }) => text.extend_from_slice(more),
        Some(_) => {}
        None if more.trim_ascii().is_empty() => {}
        None => return Err(Unread::Malformed),
    }
    Ok(())
}

/// Meets the attributes of the tag at `tag`: `name = "value"` after the element's own name.
fn attributes(
    body: &[u8],
    tag: Range<usize>,
    steps: &mut Vec<Step>,
    met: &mut impl FnMut(&[Step], Shape, Range<usize>),
) -> Result<(), Unread> {
    let text = body.get(..tag.end).unwrap_or_default();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'=' | b'/' | b'>');
    let find = |from: usize, wanted: &dyn Fn(&u8) -> bool| {
        text.get(from..).and_then(|rest| rest.iter().position(wanted)).map(|found| from + found)
    };
    let not_space = |byte: &u8| !byte.is_ascii_whitespace();
    let mut at = find(tag.start + 1, &ends).ok_or(Unread::Malformed)?;
    loop {
        let begin = find(at, &not_space).ok_or(Unread::Malformed)?;
        if matches!(text[begin], b'>' | b'/') {
            return Ok(());
        }
        let end = find(begin, &ends).ok_or(Unread::Malformed)?;
        let equals = find(end, &not_space).filter(|at| text[*at] == b'=').ok_or(Unread::Malformed)?;
        let quote = find(equals + 1, &not_space).ok_or(Unread::Malformed)?;
        if !matches!(text[quote], b'"' | b'\'') {
            return Err(Unread::Malformed);
        }
        let close = find(quote + 1, &|byte| *byte == text[quote]).ok_or(Unread::Malformed)?;
        let name = String::from_utf8_lossy(&text[begin..end]).into_owned();
        let local = name.rsplit_once(':').map_or(name.as_str(), |(_, local)| local);
        steps.push(Step::Member(format!("@{local}").into()));
        met(steps, Shape::Attribute, quote + 1..close);
        steps.pop();
        at = close + 1;
    }
}

/// One field of a form: its decoded name, and where its value stands as it was sent.
pub(super) struct Pair {
    pub(super) name: Vec<u8>,
    pub(super) value: Range<usize>,
}

/// The fields of a form or a query, in order, repeated ones each.
pub(super) fn form(body: &[u8]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut at = 0;
    for piece in body.split(|byte| *byte == b'&') {
        let end = at + piece.len();
        let name = piece.split(|byte| *byte == b'=').next().unwrap_or_default();
        let value = (at + name.len() + 1).min(end)..end;
        if !piece.is_empty() {
            pairs.push(Pair { name: form::decode(name), value });
        }
        at = end + 1;
    }
    pairs
}

/// A form's value decoded, and where each byte of it was sent; the end is one more.
pub(super) fn decoded(sent: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let (mut text, mut places) = (Vec::with_capacity(sent.len()), Vec::with_capacity(sent.len() + 1));
    let mut at = 0;
    while let Some(byte) = sent.get(at) {
        places.push(at);
        let digits = sent.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let coded = digits.and_then(|digits| {
            let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            Some(digit(digits[0])? << 4 | digit(digits[1])?)
        });
        let plain = if *byte == b'+' { b' ' } else { *byte };
        text.push(coded.unwrap_or(plain));
        at += if coded.is_some() { 3 } else { 1 };
    }
    places.push(sent.len());
    (text, places)
}

/// The value of a scalar that a walk over `body` met; `None` for null and for groups.
pub(super) fn scalar<'a>(body: &'a [u8], shape: &'a Shape, span: Range<usize>) -> Option<Cow<'a, [u8]>> {
    match shape {
        Shape::Null | Shape::Group => None,
        Shape::Plain | Shape::Attribute => body.get(span).map(Cow::Borrowed),
        Shape::Text => {
            let inside = body.get(span.start + 1..span.end.saturating_sub(1))?;
            Some(unescape(inside).map_or(Cow::Borrowed(inside), |text| Cow::Owned(text.into_vec())))
        }
        Shape::Element(text) => Some(Cow::Borrowed(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::path::place;

    fn met(body: &str, walk: impl Fn(&[u8], &mut Vec<String>) -> Result<(), Unread>) -> String {
        let mut lines = Vec::new();
        match walk(body.as_bytes(), &mut lines) {
            Ok(()) => lines.join(" "),
            Err(why) => format!("{why:?}"),
        }
    }

    fn json_of(body: &str) -> String {
        met(body, |text, lines| {
            json(text, &mut |steps, _, span| {
                lines.push(format!("{}={}", place(steps, &[]), String::from_utf8_lossy(&text[span])));
            })
        })
    }

    fn xml_of(body: &str) -> String {
        met(body, |text, lines| {
            xml(text, &mut |steps, _, span| {
                lines.push(format!("{}={}", place(steps, &[]), String::from_utf8_lossy(&text[span])));
            })
        })
    }

    #[test]
    fn every_value_is_met_with_its_path() {
        assert_eq!(json_of("7"), "$=7");
        assert_eq!(
            json_of(r#"{"a":[1,null],"b":{},"b":"x"}"#),
            concat!(r#"a[0]=1 a[1]=null a=[1,null] b={} b="x" "#, r#"$={"a":[1,null],"b":{},"b":"x"}"#)
        );
        assert_eq!(json_of(r#"{"\u0061":1}"#), r#"a=1 $={"\u0061":1}"#);
        assert_eq!(
            xml_of("<?xml version='1.0'?><s:a xmlns:s='u'><b k = \"1\">x&amp;<![CDATA[y]]></b><c/></s:a>"),
            "a.@s=u a.b.@k=1 a.b=x&amp;<![CDATA[y]]> a.c= a=<b k = \"1\">x&amp;<![CDATA[y]]></b><c/>"
        );
    }

    #[test]
    fn what_is_broken_or_too_deep_is_not_read() {
        for body in ["", "{", "[1", "{\"a\"}", "[1]x", "{\"a\":tru}", "{\"\\x\":1}"] {
            assert_eq!(json_of(body), "Malformed", "{body}");
        }
        assert!(json_of(&format!("{}{}", "[".repeat(128), "]".repeat(128))).ends_with("]]]"));
        assert_eq!(json_of(&"[".repeat(1_000_000)), "TooDeep");
        for body in ["<a>", "<a></b>", "<a/><b/>", "x<a/>", "<!DOCTYPE a><a/>", "<a>&e;</a>", "<a k></a>", ""]
        {
            assert_eq!(xml_of(body), "Malformed", "{body}");
        }
        assert_eq!(xml_of(&"<a>".repeat(1_000)), "TooDeep");
    }

    #[test]
    fn fields_of_a_form_are_found_where_they_were_sent() {
        let body = b"a=1&%62=x%3D+y&&c&a=2=3";
        let found: Vec<_> = form(body)
            .into_iter()
            .map(|pair| {
                let sent = &body[pair.value];
                let (text, places) = decoded(sent);
                assert_eq!(places.len(), text.len() + 1);
                (String::from_utf8(pair.name).unwrap(), String::from_utf8(text).unwrap())
            })
            .collect();
        let wanted = [("a", "1"), ("b", "x= y"), ("c", ""), ("a", "2=3")];
        assert_eq!(found, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(decoded(b"%4"), (b"%4".to_vec(), vec![0, 1, 2]));
    }
}
