//! Where key parts come from, for what judges a key: signatures, the configuration, what people are shown.

use http::HeaderName;

use super::part::{PartText, Selector};
use super::rules::{Format, ItemRules, PartRule, Rule, Source, Test};
use super::signature::Signature;

/// The parts of one key: the text of each that is always the same, and whether it may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyShape(pub Vec<(Option<Box<[u8]>>, bool)>);

impl ItemRules {
    /// The headers that key parts may come from although the signature of a delivery that they name may not cover them.
    pub fn headers_open_under(&self, signature: &Signature) -> Vec<HeaderName> {
        let mut open = Vec::new();
        for rule in &self.0.rules {
            let sources = rule.parts.iter().flatten().flat_map(|part| &part.sources);
            for source in sources {
                if let Source::Header(name) = source
                    && !open.contains(name)
                    && !signature.signs_header(name, |other| rule.has_header(other))
                {
                    open.push(name.clone());
                }
            }
        }
        open
    }

    /// The headers that key parts may come from.
    pub fn key_headers(&self) -> Vec<HeaderName> {
        let mut names = Vec::new();
        let parts = self.0.rules.iter().filter_map(|rule| rule.parts.as_ref()).flatten();
        for source in parts.flat_map(|part| &part.sources) {
            if let Source::Header(name) = source
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// What the key parts read, with `@` paths as paths from the body's root.
    pub(super) fn selectors(&self) -> Vec<Selector> {
        let mut selectors = Vec::new();
        for rule in &self.0.rules {
            let texts = rule.parts.iter().flatten().filter_map(|part| PartText::parse(&part.text).ok());
            for selector in texts.flat_map(|text| text.alternatives) {
                selectors.push(match (selector, rule.format) {
                    (Selector::Relative(steps), Format::Xml) => {
                        Selector::Xml([&*rule.steps, steps.as_slice()].concat())
                    }
                    (Selector::Relative(steps), Format::Whole | Format::Json) => {
                        Selector::Json([&*rule.steps, steps.as_slice()].concat())
                    }
                    (other, _) => other,
                });
            }
        }
        selectors
    }

    /// What each rule's keys look like, each once.
    pub fn key_shapes(&self) -> Vec<KeyShape> {
        let mut shapes: Vec<KeyShape> = Vec::new();
        for parts in self.0.rules.iter().filter_map(|rule| rule.parts.as_ref()) {
            let part = |part: &PartRule| match part.sources.as_slice() {
                [Source::Literal(text)] => (Some(text.clone()), part.optional),
                _ => (None, part.optional),
            };
            let shape = KeyShape(parts.iter().map(part).collect());
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }

    /// Each source of a key part as written, once: `$.id`, `@.id`, `form:id`.
    pub fn key_sources(&self) -> Vec<String> {
        let mut sources: Vec<String> = Vec::new();
        for part in self.0.rules.iter().filter_map(|rule| rule.parts.as_ref()).flatten() {
            for source in part.text.split('|') {
                let source = source.trim().trim_end_matches('?');
                if !sources.iter().any(|known| known == source) {
                    sources.push(source.to_owned());
                }
            }
        }
        sources
    }
}

impl Rule {
    /// Whether deliveries that the rule is for have this header; `None` where the rule doesn't say.
    fn has_header(&self, name: &HeaderName) -> Option<bool> {
        self.when.iter().find_map(|(source, test)| match (source, test) {
            (Source::Header(header), Test::Present(present)) if header == name => Some(*present),
            (Source::Header(header), Test::OneOf(_)) if header == name => Some(true),
            _ => None,
        })
    }
}
