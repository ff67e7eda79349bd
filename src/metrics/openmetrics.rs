//! What the exporter renders, as OpenMetrics: the same series and values, and exemplars beside the buckets of whole
//! requests. Used only where a scraper asks for it and traces are on.

use super::REQUEST_DURATION;
use super::exemplars::Exemplars;

/// The media type of [`openmetrics`].
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Rewrites a text of the older format. `le` stays as it was written, so that a bucket is the same series in both.
pub fn openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            match family.split_once(' ') {
                Some((name, "counter")) => meta(&mut out, "TYPE", name, "counter"),
                Some(_) | None => plain(&mut out, line),
            }
        } else if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            meta(&mut out, "HELP", name, &help.replace('"', "\\\""));
        } else if line.starts_with('#') {
            // Other comments have no place there.
        } else {
            out.push_str(line);
            exemplar(&mut out, line);
            out.push('\n');
        }
    }
    out.push_str("# EOF\n");
    out
}

/// A family of counters is named without what each of its samples ends with.
fn meta(out: &mut String, what: &str, name: &str, text: &str) {
    let family = name.strip_suffix("_total").unwrap_or(name);
    out.extend(["# ", what, " ", family, " ", text, "\n"]);
}

fn plain(out: &mut String, line: &str) {
    out.extend([line, "\n"]);
}

fn exemplar(out: &mut String, sample: &str) {
    let Some(labels) = sample.strip_prefix(REQUEST_DURATION).and_then(|rest| rest.strip_prefix("_bucket{"))
    else {
        return;
    };
    // A route's name holds nothing that would be escaped.
    let label = |name: &str| labels.split_once(name)?.1.split('"').next();
    let Some(found) =
        label("route=\"").zip(label("le=\"")).and_then(|(route, le)| Exemplars::in_bucket(route, le))
    else {
        return;
    };
    let text = format!(
        " # {{trace_id=\"{:032x}\"}} {} {}.{:03}",
        found.trace,
        found.took.as_secs_f64(),
        found.at.as_secs(),
        found.at.subsec_millis()
    );
    out.push_str(&text);
}

/// Whether an `Accept` header ranks OpenMetrics at least as high as the older text.
pub fn prefers_openmetrics(accept: &str) -> bool {
    let rank = |wanted: &str| {
        let ranges = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            parts.next().filter(|media| media.eq_ignore_ascii_case(wanted))?;
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            Some(quality.map_or(1.0, |quality| quality.parse::<f32>().unwrap_or(0.0)))
        });
        ranges.fold(0.0, f32::max)
    };
    let open = rank("application/openmetrics-text");
    open > 0.0 && open >= rank("text/plain")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_older_text_is_rewritten() {
        let old = "# HELP umavez_items_total Items \"by\" verdict.\n# TYPE umavez_items_total counter\n\
            umavez_items_total{route=\"a\"} 3\n\n# TYPE umavez_held gauge\numavez_held 0\n\n\
            # TYPE umavez_request_duration_seconds histogram\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"0.5\"} 1\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"1\"} 2\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"+Inf\"} 3\n";
        let seen = Exemplars::of("exemplary");
        seen.note(0xab, Duration::from_millis(750), Duration::from_millis(1_700_000_000_012));
        seen.note(1, Duration::from_secs(61), Duration::ZERO);
        let new = "# HELP umavez_items Items \\\"by\\\" verdict.\n# TYPE umavez_items counter\n\
            umavez_items_total{route=\"a\"} 3\n# TYPE umavez_held gauge\numavez_held 0\n\
            # TYPE umavez_request_duration_seconds histogram\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"0.5\"} 1\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"1\"} 2 \
            # {trace_id=\"000000000000000000000000000000ab\"} 0.75 1700000000.012\n\
            umavez_request_duration_seconds_bucket{route=\"exemplary\",le=\"+Inf\"} 3 \
            # {trace_id=\"00000000000000000000000000000001\"} 61 0.000\n# EOF\n";
        assert_eq!(openmetrics(old), new);
    }

    #[test]
    fn it_is_told_to_who_prefers_it() {
        for (accept, open) in [
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                true,
            ),
            ("application/openmetrics-text", true),
            ("Application/OpenMetrics-Text; version=0.0.1, text/plain", true),
            ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.1", false),
            ("application/openmetrics-text;q=0", false),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(prefers_openmetrics(accept), open, "{accept}");
        }
    }
}
