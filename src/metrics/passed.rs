//! Counts what passes through without dedup.

use metrics::counter;

use super::PASSED;

/// Counts a request that was passed through without dedup.
pub fn passed(status: http::StatusCode) {
    let class = match status.as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    counter!(PASSED, "answer" => class).increment(1);
}
