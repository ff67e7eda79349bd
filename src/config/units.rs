//! Durations (`"72h"`) and sizes (`"1MiB"`): one number, one unit. Total: any text gives a value or a reason.

use std::time::Duration;

use super::problem::Fault;

/// Longest duration anyone may write: ten years.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);
/// Largest size anyone may write: 1 TiB.
const SIZE_MAX: u64 = 1 << 40;

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Parses `"500ms"`, `"8s"`, `"5m"`, `"72h"`, `"60d"`.
pub fn parse_duration(text: &str) -> Result<Duration, Fault> {
    let mend = || "write a whole number and ms, s, m, h or d, such as \"500ms\", \"8s\" or \"72h\"";
    let (digits, unit) = split(text);
    if digits.is_empty() {
        return Err(Fault::new(format!("{text:?} is no duration"), mend()));
    }
    let Some((_, factor)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
        let what = if unit.is_empty() {
            format!("{text:?} has no unit")
        } else {
            format!("{text:?} has the unknown unit {unit:?}")
        };
        return Err(Fault::new(what, mend()));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .map(Duration::from_millis)
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| Fault::new(format!("{text:?} is too long"), "write at most \"3650d\""))
}

/// Parses `"64KiB"`, `"25MB"`, `"512B"`, `"512"`: bytes.
pub fn parse_size(text: &str) -> Result<u64, Fault> {
    let (digits, unit) = split(text);
    let mend = "write a whole number and B, KiB, MiB, GiB, kB, MB or GB, such as \"1MiB\"";
    if digits.is_empty() {
        return Err(Fault::new(format!("{text:?} is no size"), mend));
    }
    let Some((_, factor)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(Fault::new(format!("{text:?} has the unknown unit {unit:?}"), mend));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .filter(|size| *size <= SIZE_MAX)
        .ok_or_else(|| Fault::new(format!("{text:?} is too large"), "write at most \"1024GiB\""))
}

/// A duration as an operator would write it.
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    // Hours up to three days: "72h" is how windows are usually told.
    let days_from = 4 * 86_400_000;
    let unit = DURATION_UNITS
        .iter()
        .rev()
        .filter(|(name, _)| *name != "d" || millis >= days_from)
        .find(|(_, factor)| millis > 0 && millis.is_multiple_of(u128::from(*factor)));
    match unit {
        Some((name, factor)) => format!("{}{name}", millis / u128::from(*factor)),
        None => "0s".to_owned(),
    }
}

/// A size as an operator would write it.
pub fn show_size(bytes: u64) -> String {
    for (name, factor) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes > 0 && bytes.is_multiple_of(factor) {
            return format!("{}{name}", bytes / factor);
        }
    }
    format!("{bytes}B")
}

/// The leading digits and the rest, with spaces between them dropped.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end).unwrap_or((text, ""));
    (digits, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        let good = [
            ("500ms", 500),
            ("8s", 8_000),
            ("5m", 300_000),
            ("72h", 259_200_000),
            ("60d", 5_184_000_000),
            ("0s", 0),
            (" 8 s ", 8_000),
            ("3650d", 315_360_000_000),
        ];
        for (text, millis) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        let bad = [
            ("", "no duration"),
            ("h", "no duration"),
            ("-1s", "no duration"),
            ("72", "no unit"),
            ("72x", "unknown unit \"x\""),
            ("1.5h", "unknown unit"),
            ("1H", "unknown unit"),
            ("3651d", "too long"),
            ("99999999999999999999s", "too long"),
            ("9999999999999999999d", "too long"),
            ("8s\0", "unknown unit"),
            ("٣s", "no duration"),
        ];
        for (text, why) in bad {
            let fault = parse_duration(text).unwrap_err();
            assert!(fault.what.contains(why), "{text}: {fault}");
            assert!(fault.mend.starts_with("write"), "{text}: {fault}");
        }
    }

    #[test]
    fn sizes_are_bytes_unless_a_unit_says_more() {
        let good = [
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("1MiB", 1_048_576),
            ("25MB", 25_000_000),
            ("1 GiB", 1 << 30),
            ("10kB", 10_000),
            ("0", 0),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("", "no size"),
            ("MiB", "no size"),
            ("1KB", "unknown unit \"KB\""),
            ("1mb", "unknown unit"),
            ("1.5MiB", "unknown unit"),
            ("1025GiB", "too large"),
            ("99999999999999999999", "too large"),
        ] {
            let fault = parse_size(text).unwrap_err();
            assert!(fault.what.contains(why), "{text}: {fault}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_value_or_a_reason(text in ".*") {
            drop((parse_duration(&text), parse_size(&text)));
        }

        #[test]
        fn what_is_shown_parses_again(millis in 0_u64..315_360_000_000, bytes in 0_u64..(1 << 40)) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }
}
