//! Paths into a body, as provider files and route keys write them: `$.data.key.id`, `$.entry[*].id`,
//! `$["a.b"]`, and for XML `/Envelope/Body/Id`. Only the syntax; finding what they name is `tree` and `trie`.

use std::fmt;

/// Most steps of one path: what the scanners recurse by.
pub(super) const STEPS_MAX: usize = 32;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The member, or the child element, of this name; of repeated ones the last.
    Member(Box<str>),
    /// Every element of an array, or every child element of the name before it.
    Each,
    /// The element at this position, from 0.
    At(usize),
}

/// Reads steps written as in JSON (`.name`, `["name"]`, `[*]`, `[0]`) from the start of `text`;
/// gives them and the text after them.
pub(super) fn json_steps(mut text: &str) -> Result<(Vec<Step>, &str), String> {
    let mut steps = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('.') {
            let (name, rest) = split_name(rest);
            if name.is_empty() {
                return Err("a member name is missing after '.'; odd names are written [\"…\"]".into());
            }
            steps.push(Step::Member(name.into()));
            text = rest;
        } else if let Some(rest) = text.strip_prefix('[') {
            let (step, rest) = bracket(rest)?;
            steps.push(step);
            text = rest;
        } else {
            bounded(&steps)?;
            return Ok((steps, text));
        }
    }
}

/// Reads steps written as in XML (`/Envelope/Body/Item[*]/Id`, names without their prefix) from the start of `text`.
pub(super) fn xml_steps(mut text: &str) -> Result<(Vec<Step>, &str), String> {
    let mut steps = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('/') {
            let (name, rest) = split_name(rest);
            if name.is_empty() {
                return Err("an element name is missing after '/'".into());
            }
            if name.contains(':') {
                return Err(format!("\"{name}\" has a prefix; write the name after the ':' alone"));
            }
            steps.push(Step::Member(name.into()));
            text = rest;
        } else if let Some(rest) = text.strip_prefix("[*]") {
            match steps.last() {
                Some(Step::Member(_)) => steps.push(Step::Each),
                Some(Step::Each | Step::At(_)) | None => {
                    return Err("[*] must follow an element's name".into());
                }
            }
            text = rest;
        } else if text.starts_with('[') {
            return Err("in XML only [*] is understood".into());
        } else {
            if steps.is_empty() {
                return Err("an XML path begins with '/', as in xml:/Envelope/Body/Id".into());
            }
            bounded(&steps)?;
            return Ok((steps, text));
        }
    }
}

/// An XML path with a `[*]` after each name of which `items` takes every element: it means the one that the item is in.
pub(super) fn among(items: &[Step], steps: &[Step]) -> Vec<Step> {
    let mut placed: Vec<Step> = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        if *step != Step::Each && items.get(placed.len()) == Some(&Step::Each) && items.starts_with(&placed) {
            placed.push(Step::Each);
        }
        placed.push(step.clone());
    }
    placed
}

fn bounded(steps: &[Step]) -> Result<(), String> {
    if steps.len() > STEPS_MAX {
        return Err(format!("a path has at most {STEPS_MAX} steps"));
    }
    Ok(())
}

/// Splits a name that needs no quotes from the start of `text`.
pub(super) fn split_name(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '@' | '#')))
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Reads a quoted name, as JSON writes strings, from the start of `text`.
pub(super) fn split_quoted(text: &str) -> Result<(String, &str), String> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let (quoted, rest) = text.split_at(at + 1);
                let name = serde_json::from_str(quoted).map_err(|error| format!("{quoted}: {error}"))?;
                return Ok((name, rest));
            }
            _ => {}
        }
    }
    Err("a quoted name has no closing quote".into())
}

fn bracket(text: &str) -> Result<(Step, &str), String> {
    let (step, rest) = if let Some(rest) = text.strip_prefix('*') {
        (Step::Each, rest)
    } else if text.starts_with('"') {
        let (name, rest) = split_quoted(text)?;
        (Step::Member(name.into()), rest)
    } else {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, rest) = text.split_at(digits);
        let position =
            digits.parse().map_err(|_| "in [ ] stands *, a position from 0, or a name in double quotes")?;
        (Step::At(position), rest)
    };
    match rest.strip_prefix(']') {
        Some(rest) => Ok((step, rest)),
        None => Err("a ']' is missing".into()),
    }
}

/// Writes where `steps` lead, with each wildcard's position taken from `positions`; `$` for no steps.
pub(super) fn place(steps: &[Step], positions: &[usize]) -> String {
    use fmt::Write as _;
    let mut text = String::new();
    let mut positions = positions.iter();
    for step in steps {
        match step {
            Step::Member(name) if split_name(name).1.is_empty() => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Step::Member(name) => write!(text, "[{name:?}]").expect("a String takes any text"),
            Step::Each => {
                let position = positions.next().copied().unwrap_or_default();
                write!(text, "[{position}]").expect("a String takes any text");
            }
            Step::At(position) => write!(text, "[{position}]").expect("a String takes any text"),
        }
    }
    if text.is_empty() { "$".into() } else { text }
}
