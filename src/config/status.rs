//! Which statuses of the app mean that an event is done.

use std::ops::RangeInclusive;

use super::problem::Fault;

/// Which statuses of the app mean that the event is done; default 200-299.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSet(pub Vec<RangeInclusive<u16>>);

impl Default for StatusSet {
    fn default() -> Self {
        Self(vec![200..=299])
    }
}

impl StatusSet {
    /// Whether the app's answer means that the event is done.
    pub fn contains(&self, status: http::StatusCode) -> bool {
        self.0.iter().any(|range| range.contains(&status.as_u16()))
    }
}

/// Parses one of `"2xx"`, `"302"`, `"300-302"`.
pub(super) fn parse_statuses(text: &str) -> Result<RangeInclusive<u16>, Fault> {
    let wrong = || Fault::new(format!("{text:?} names no statuses"), "write 302, \"2xx\" or \"300-302\"");
    let range = match text.split_once('-') {
        Some((from, to)) => number(from).ok_or_else(wrong)?..=number(to).ok_or_else(wrong)?,
        None => match text.strip_suffix("xx") {
            Some(class) => {
                let hundreds = class.parse::<u16>().ok().filter(|class| *class < 10).ok_or_else(wrong)?;
                hundreds * 100..=hundreds * 100 + 99
            }
            None => {
                let one = number(text).ok_or_else(wrong)?;
                one..=one
            }
        },
    };
    if range.is_empty() || *range.start() < 200 || *range.end() > 599 {
        return Err(Fault::new(
            format!("{text:?} is no range of final statuses"),
            "write some of 200 to 599",
        ));
    }
    Ok(range)
}

fn number(text: &str) -> Option<u16> {
    if text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_classes_and_ranges() {
        for (text, range) in
            [("2xx", 200..=299), ("302", 302..=302), ("300-302", 300..=302), ("4xx", 400..=499)]
        {
            assert_eq!(parse_statuses(text), Ok(range), "{text}");
        }
        for text in
            ["", "xx", "x", "20", "2000", "1xx", "6xx", "302-300", "200-", "-", "ok", "12xx", "+20", "2XX"]
        {
            assert!(parse_statuses(text).is_err(), "{text}");
        }
    }
}
