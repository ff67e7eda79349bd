//! What the gateway exports, read as Prometheus reads it.

/// One scrape.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    text: String,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| Sample::parse(line).unwrap_or_else(|| panic!("not a sample: {line}")));
        Self { text: text.to_owned(), samples: samples.collect() }
    }

    /// The sum of all samples of this name that carry these labels; 0 where there is none.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            labels.iter().all(|(name, value)| sample.labels.iter().any(|(n, v)| n == name && v == value))
        };
        // Adding to 0.0: the sum of no floats is -0.0.
        0.0 + self.samples.iter().filter(|s| s.name == name).filter(carries).map(|s| s.value).sum::<f64>()
    }

    /// How many series there are.
    pub(crate) fn series(&self) -> usize {
        self.samples.len()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            None => (series, ""),
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
        };
        let pairs = labels.split("\",").filter(|pair| !pair.is_empty());
        let labels = pairs.map(|pair| {
            let (name, value) = pair.split_once("=\"")?;
            Some((name.trim().to_owned(), value.trim_end_matches('"').to_owned()))
        });
        Some(Self {
            name: name.to_owned(),
            labels: labels.collect::<Option<_>>()?,
            value: value.parse().ok()?,
        })
    }
}
