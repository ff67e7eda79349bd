//! What a Redis that answers is set up to do sooner or later: for people who check a configuration, not for requests.

use super::Redis;
use super::way::Reply;

/// The share of its memory from which on a Redis that evicts nothing is worth a word, in hundredths.
const NEARLY_FULL: u64 = 90;

impl Redis {
    /// Each with its mend; nothing where it can't be asked, which an ACL may forbid.
    pub(in crate::ledger::hot) async fn doubts(&self) -> Vec<String> {
        let Ok(way) = self.way() else { return Vec::new() };
        match way.ask(self.node.timeout, None, &[b"INFO", b"memory"]).await {
            Ok(Reply::Value(told)) => full(&String::from_utf8_lossy(&told)).into_iter().collect(),
            Ok(Reply::Nil | Reply::Number(_) | Reply::Word) | Err(_) => Vec::new(),
        }
    }
}

/// Whether it refuses writes now, or soon, by what `INFO memory` tells.
fn full(told: &str) -> Option<String> {
    let field =
        |name: &str| told.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    let (used, max) = (number("used_memory")?, number("maxmemory").filter(|max| *max > 0)?);
    let full = used.saturating_mul(100) >= max.saturating_mul(NEARLY_FULL);
    (field("maxmemory_policy")? == "noeviction" && full).then(|| {
        format!(
            "Redis has {used} of maxmemory {max} bytes in use and evicts nothing (noeviction): full, it refuses writes, \
             and is not asked any more; set maxmemory-policy allkeys-lru (volatile-lru where it is shared), or give it \
             more memory"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_is_full_where_it_evicts_nothing() {
        let told = |used: u64, max: u64, policy: &str| {
            full(&format!(
                "# Memory\r\nused_memory:{used}\r\nmaxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n"
            ))
            .is_some()
        };
        assert!(told(95, 100, "noeviction"));
        assert!(told(120, 100, "noeviction"));
        assert!(!told(50, 100, "noeviction"));
        assert!(!told(95, 100, "allkeys-lru"));
        assert!(!told(95, 0, "noeviction"), "without a bound there is none to meet");
        assert_eq!(full(""), None);
    }
}
