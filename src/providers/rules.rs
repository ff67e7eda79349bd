//! Item rules, compiled: where the items of a body are, under which conditions, and the parts that name each.

use std::sync::Arc;

use http::HeaderName;

use super::part::{PartText, Selector};
use super::path::{Step, among, json_steps, xml_steps};
use super::trie::{Hop, Trie};

/// Where the items of a body are, and the parts that name each. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ItemRules(pub(super) Arc<Compiled>);

#[derive(Debug, Default)]
pub(super) struct Compiled {
    pub(super) rules: Vec<Rule>,
    pub(super) json: Trie,
    pub(super) xml: Trie,
    pub(super) json_in_form: Option<Box<str>>,
    reads_form: bool,
}

/// In which format an item's place is written. `Whole` is the body as such, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Whole,
    Json,
    Xml,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) format: Format,
    pub(super) steps: Arc<[Step]>,
    pub(super) hops: Vec<Hop>,
    pub(super) when: Vec<(Source, Test)>,
    /// What `when` looks at, as written, for people.
    pub(super) looks_at: Vec<String>,
    /// `None` for items that have no key by nature.
    pub(super) parts: Option<Vec<PartRule>>,
    /// Where what differs between copies of one event is, as written and as read.
    pub(super) volatile: Vec<(Selector, Source)>,
}

#[derive(Debug)]
pub(super) struct PartRule {
    /// As written, for people.
    pub(super) text: Arc<str>,
    pub(super) optional: bool,
    pub(super) sources: Vec<Source>,
}

#[derive(Debug)]
pub(super) enum Source {
    Literal(Box<[u8]>),
    Json(Bound),
    Xml(Bound),
    Header(HeaderName),
    Query(Box<str>),
    Path(Box<str>),
    Form(Box<str>),
}

/// A path that starts at one of the item's ancestors: the wildcards before it are the item's own.
#[derive(Debug)]
pub(super) struct Bound {
    /// How many steps below the root the ancestor is.
    pub(super) from: usize,
    pub(super) hops: Vec<Hop>,
}

/// A condition on one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Present(bool),
    /// An element, though nothing may be in it.
    There,
    OneOf(Vec<Box<[u8]>>),
}

/// One rule as written, before its paths are known to belong together.
#[derive(Debug)]
pub(super) struct RuleText {
    pub(super) format: Format,
    pub(super) steps: Vec<Step>,
    /// Where each condition looks, as written and as read.
    pub(super) when: Vec<(String, Selector, Test)>,
    pub(super) key: Option<Vec<(String, PartText)>>,
    /// Where in the body what differs between copies of one event is.
    pub(super) volatile: Vec<Selector>,
}

/// What a provider file says of the places around its items, in JSON.
#[derive(Debug)]
pub(super) enum Mark {
    /// Elements here go with the last of their items.
    Envelope(Vec<Step>),
    /// What stands here only describes the items beside it.
    Describes(Vec<Step>),
}

/// What is wrong with a rule: which one, and in which of its texts.
#[derive(Debug)]
pub(super) struct RuleFault {
    pub(super) rule: usize,
    pub(super) at: FaultAt,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FaultAt {
    Path,
    When(usize),
    Part(usize),
    Volatile(usize),
}

impl RuleText {
    /// The whole delivery, whatever it is, without a key.
    pub(super) fn of_the_whole() -> Self {
        let (format, steps, when, volatile) = (Format::Whole, Vec::new(), Vec::new(), Vec::new());
        Self { format, steps, when, key: None, volatile }
    }

    fn items_in_xml(&self) -> &[Step] {
        if self.format == Format::Xml { &self.steps } else { &[] }
    }
}

impl PartText {
    /// Whether the part can come from the delivery at all.
    pub(super) fn reads(&self) -> bool {
        self.alternatives.iter().any(|selector| !matches!(selector, Selector::Literal(_)))
    }

    /// Whether it is read in an item.
    pub(super) fn is_relative(&self) -> bool {
        self.alternatives.iter().any(|selector| matches!(selector, Selector::Relative(_)))
    }
}

/// Reads an item's `path`: `$…`, or `xml:/…`.
pub(super) fn item_path(text: &str) -> Result<(Format, Vec<Step>), String> {
    let (format, (steps, rest)) = if let Some(rest) = text.strip_prefix('$') {
        (Format::Json, json_steps(rest)?)
    } else if let Some(rest) = text.strip_prefix("xml:") {
        (Format::Xml, xml_steps(rest)?)
    } else {
        return Err("an item's path begins with $, or with xml:/".into());
    };
    if !rest.is_empty() {
        return Err(format!("\"{rest}\" is not understood at the end of the path"));
    }
    Ok((if steps.is_empty() { Format::Whole } else { format }, steps))
}

impl Compiled {
    pub(super) fn new(
        texts: Vec<RuleText>,
        marks: &[Mark],
        json_in_form: Option<Box<str>>,
    ) -> Result<Self, RuleFault> {
        Self { json_in_form, ..Self::default() }.with(texts, marks)
    }

    /// These rules' items, envelopes and conditions under another key: what a condition tells to have no key by nature
    /// keeps none.
    pub(super) fn rekeyed(&self, key: &[(String, PartText)]) -> Result<Self, RuleFault> {
        let texts = self.rules.iter().map(|rule| {
            let conditions = rule.looks_at.iter().zip(&rule.when);
            let when: Vec<_> = conditions
                .filter_map(|(text, (_, test))| {
                    let (selector, _) = Selector::parse(text).ok()?;
                    Some((text.clone(), selector, test.clone()))
                })
                .collect();
            let keeps_none = rule.parts.is_none() && !when.is_empty();
            let key = (!keeps_none).then(|| key.to_vec());
            let volatile = rule.volatile.iter().map(|(written, _)| written.clone()).collect();
            RuleText { format: rule.format, steps: rule.steps.to_vec(), when, key, volatile }
        });
        let bare = Self {
            rules: Vec::new(),
            json: self.json.clone(),
            xml: self.xml.clone(),
            json_in_form: self.json_in_form.clone(),
            reads_form: self.reads_form,
        };
        bare.with(texts.collect(), &[])
    }

    fn with(mut self, texts: Vec<RuleText>, marks: &[Mark]) -> Result<Self, RuleFault> {
        self.plant(&texts, marks)?;
        for (index, text) in texts.into_iter().enumerate() {
            let rule = self.rule(text).map_err(|(at, why)| RuleFault { rule: index, at, why })?;
            self.rules.push(rule);
        }
        Ok(self)
    }

    pub(super) fn reads_body(&self) -> bool {
        self.reads_form || !self.json.is_empty() || !self.xml.is_empty()
    }

    /// Puts every path into its trie, since hops can be told only when all are in.
    fn plant(&mut self, texts: &[RuleText], marks: &[Mark]) -> Result<(), RuleFault> {
        for (rule, text) in texts.iter().enumerate() {
            let fault = |at| move |why| RuleFault { rule, at, why };
            self.trie(text.format).insert(&text.steps).map_err(fault(FaultAt::Path))?;
            if text.format == Format::Json && !marks.is_empty() {
                self.json.mark_way(&text.steps).map_err(fault(FaultAt::Path))?;
            }
            for (index, (_, selector, _)) in text.when.iter().enumerate() {
                self.plant_one(selector, text).map_err(fault(FaultAt::When(index)))?;
            }
            for (index, (_, part)) in text.key.iter().flatten().enumerate() {
                for selector in &part.alternatives {
                    self.plant_one(selector, text).map_err(fault(FaultAt::Part(index)))?;
                }
            }
            for (index, selector) in text.volatile.iter().enumerate() {
                self.plant_one(selector, text).map_err(fault(FaultAt::Volatile(index)))?;
            }
        }
        for mark in marks {
            let marked = match mark {
                Mark::Envelope(steps) => self.json.mark_envelope(steps),
                Mark::Describes(steps) => self.json.mark_known(steps),
            };
            marked.map_err(|why| RuleFault { rule: 0, at: FaultAt::Path, why })?;
        }
        Ok(())
    }

    fn plant_one(&mut self, selector: &Selector, text: &RuleText) -> Result<(), String> {
        match selector {
            Selector::Json(steps) => self.json.insert(steps).map(drop),
            Selector::Xml(steps) => self.xml.insert(&among(text.items_in_xml(), steps)).map(drop),
            Selector::Relative(steps) => {
                let steps = [text.steps.as_slice(), steps].concat();
                self.trie(text.format).insert(&steps).map(drop)
            }
            Selector::Form(_) => {
                self.reads_form = true;
                Ok(())
            }
            Selector::Literal(_) | Selector::Header(_) | Selector::Query(_) | Selector::Path(_) => Ok(()),
        }
    }

    fn trie(&mut self, format: Format) -> &mut Trie {
        match format {
            Format::Whole | Format::Json => &mut self.json,
            Format::Xml => &mut self.xml,
        }
    }

    fn rule(&self, text: RuleText) -> Result<Rule, (FaultAt, String)> {
        let hops = match text.format {
            Format::Whole | Format::Json => self.json.resolve(&text.steps),
            Format::Xml => self.xml.resolve(&text.steps),
        };
        let (mut when, mut looks_at) = (Vec::new(), Vec::new());
        for (index, (written, selector, test)) in text.when.into_iter().enumerate() {
            let source = self.source(selector, text.format, &text.steps);
            when.push((source.map_err(|why| (FaultAt::When(index), why))?, test));
            looks_at.push(written);
        }
        let mut parts = None;
        for (index, (written, part)) in text.key.into_iter().flatten().enumerate() {
            let sources = part.alternatives.into_iter();
            let sources = sources.map(|selector| self.source(selector, text.format, &text.steps));
            let sources = sources.collect::<Result<_, _>>().map_err(|why| (FaultAt::Part(index), why))?;
            let part = PartRule { text: written.into(), optional: part.optional, sources };
            parts.get_or_insert_with(Vec::new).push(part);
        }
        let mut volatile = Vec::new();
        for (index, selector) in text.volatile.into_iter().enumerate() {
            let source = self.source(selector.clone(), text.format, &text.steps);
            volatile.push((selector, source.map_err(|why| (FaultAt::Volatile(index), why))?));
        }
        Ok(Rule { format: text.format, steps: text.steps.into(), hops, when, looks_at, parts, volatile })
    }

    fn source(&self, selector: Selector, format: Format, item: &[Step]) -> Result<Source, String> {
        Ok(match selector {
            Selector::Literal(text) => Source::Literal(text.as_bytes().into()),
            Selector::Header(name) => Source::Header(name),
            Selector::Query(name) => Source::Query(name),
            Selector::Path(name) => Source::Path(name),
            Selector::Form(name) => Source::Form(name),
            Selector::Json(steps) => {
                let item = if format == Format::Json { item } else { &[] };
                Source::Json(bind(&self.json, item, &steps)?)
            }
            Selector::Xml(steps) => {
                let item = if format == Format::Xml { item } else { &[] };
                Source::Xml(bind(&self.xml, item, &among(item, &steps))?)
            }
            Selector::Relative(steps) => {
                let steps = [item, steps.as_slice()].concat();
                match format {
                    Format::Whole | Format::Json => Source::Json(bind(&self.json, item, &steps)?),
                    Format::Xml => Source::Xml(bind(&self.xml, item, &steps)?),
                }
            }
        })
    }
}

/// Lets the wildcards of a path that are also the item's stand for the item's own elements.
fn bind(trie: &Trie, item: &[Step], steps: &[Step]) -> Result<Bound, String> {
    let from = item.iter().zip(steps).take_while(|(of_item, step)| of_item == step).count();
    let hops = trie.resolve(steps).split_off(from);
    if hops.contains(&Hop::Each) {
        return Err("a [*] in a part must also be in the item's path, so that it means one element".into());
    }
    Ok(Bound { from, hops })
}
