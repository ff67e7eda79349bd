//! When a delivery says that it was signed, and whether that is near enough to now.

use std::borrow::Cow;

use super::format::Written;
use super::place::BadSignature;
use super::{Ahead, Stamp, StampUnit};
use crate::providers::Delivery;

impl Stamp {
    pub(super) fn read<'a>(
        &self,
        delivery: &Delivery<'a>,
        written: &Written<'a>,
    ) -> Result<Option<Cow<'a, str>>, BadSignature> {
        let Some(source) = &self.source else { return Ok(written.timestamp.map(Cow::Borrowed)) };
        let value = source
            .read(delivery, delivery.body, None)?
            .ok_or_else(|| BadSignature::Missing(source.to_string()))?;
        String::from_utf8(value.into_owned())
            .map(|text| Some(Cow::Owned(text)))
            .map_err(|_| BadSignature::Malformed(source.to_string()))
    }

    /// Whether the stamp is written as stamps are, and near enough to now.
    pub(super) fn fresh(&self, stamp: Option<&str>, now_ms: u64) -> Result<(), BadSignature> {
        let Some(stamp) = stamp else { return Ok(()) };
        let (number, in_ms) =
            self.number(stamp).ok_or_else(|| BadSignature::Malformed("the timestamp".to_owned()))?;
        let Some(tolerance) = self.tolerance else { return Ok(()) };
        // Whole seconds are compared with whole seconds, as the providers' own libraries do.
        let (now, per_second) = if in_ms { (now_ms, 1000) } else { (now_ms / 1000, 1) };
        let tolerance_s = tolerance.as_secs();
        let allowed = tolerance_s.saturating_mul(per_second);
        let (age, ahead) = (now.saturating_sub(number), number.saturating_sub(now));
        if age > allowed {
            return Err(BadSignature::TooOld { age_s: age / per_second, tolerance_s });
        }
        if ahead > allowed && self.ahead == Ahead::Refused {
            return Err(BadSignature::FromTheFuture { ahead_s: ahead / per_second, tolerance_s });
        }
        Ok(())
    }

    /// The stamp's number, and whether it counts milliseconds. Only the ten or thirteen digits of our times are one:
    /// in `{timestamp}{body}` a digit could else move between stamp and body under the same signature.
    fn number(&self, stamp: &str) -> Option<(u64, bool)> {
        let in_ms = match (self.unit, stamp.len()) {
            (StampUnit::Seconds | StampUnit::Either, 10) => false,
            (StampUnit::Milliseconds | StampUnit::Either, 13) => true,
            (StampUnit::Iso, _) => return iso_ms(stamp).map(|ms| (ms, true)),
            (StampUnit::Seconds | StampUnit::Milliseconds | StampUnit::Either, _) => return None,
        };
        let digits = !stamp.starts_with('0') && stamp.bytes().all(|byte| byte.is_ascii_digit());
        stamp.parse().ok().filter(|_| digits).map(|number| (number, in_ms))
    }
}

/// Milliseconds since 1970 of `2026-08-10T11:59:58.000Z`; the fraction may be absent.
fn iso_ms(text: &str) -> Option<u64> {
    const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "000"));
    let number = |text: &str, digits: usize| {
        (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let mut date = date.splitn(3, '-');
    let (year, month, day) = (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
    let mut time = time.splitn(3, ':');
    let (hour, minute, second) =
        (number(time.next()?, 2)?, number(time.next()?, 2)?, number(time.next()?, 2)?);
    let before: u64 = *DAYS_BEFORE.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if year < 1970 || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    // Of the year's own leap day, what comes after February has it behind.
    let leap_years = leaps(if month > 2 { year } else { year - 1 }) - leaps(1969);
    let days = (year - 1970) * 365 + leap_years + before + day - 1;
    let fraction_ms = number(fraction, 3)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + fraction_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_times_are_counted() {
        let table = [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-08-10T12:00:00.000Z", Some(1_786_363_200_000)),
            ("2024-02-29T23:59:59.999Z", Some(1_709_251_199_999)),
            ("2024-03-01T00:00:00Z", Some(1_709_251_200_000)),
            ("2100-03-01T00:00:00Z", Some(4_107_542_400_000)),
            ("2026-13-01T00:00:00Z", None),
            ("2026-00-01T00:00:00Z", None),
            ("2026-08-32T00:00:00Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("2026-08-10T12:00:00", None),
            ("2026-08-10T12:00:00+01:00", None),
            ("2026-8-10T12:00:00Z", None),
            ("2026-08-10T12:00:00.Z", None),
            ("2026-08-10T12:00:00.000000Z", None),
            ("2026-08-10T1\u{661}:00:00Z", None),
            ("T", None),
        ];
        for (text, expected) in table {
            assert_eq!(iso_ms(text), expected, "{text}");
        }
    }
}
