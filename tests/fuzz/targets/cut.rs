//! Items cut out of hostile bodies: what stays names the same events as before, in the same order, byte for byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umavez_fuzz::{Input, providers};

fuzz_target!(|bytes: &[u8]| {
    let input = Input::of(bytes);
    // Which items go; read from the end, where bodies have white space to spare.
    let choice =
        input.body.iter().rev().take(8).fold(bytes.len(), |sum, byte| sum * 31 % 65_521 + usize::from(*byte));
    for provider in providers() {
        let items = provider.items(&input.delivery(input.body));
        if !items.can_cut() || items.list.len() < 2 {
            continue;
        }
        let goes = |index: usize| (choice >> (index % 13)) & 1 == 1;
        let removed: Vec<usize> = (0..items.list.len()).filter(|index| goes(*index)).collect();
        if removed.len() == items.list.len() {
            continue;
        }
        let body = items.without(input.body, &removed);
        if removed.is_empty() {
            assert_eq!(body, input.body, "nothing was cut");
            continue;
        }
        let stays: Vec<_> =
            items.list.iter().enumerate().filter(|(index, _)| !goes(*index)).map(|(_, item)| item).collect();
        let left = provider.items(&input.delivery(&body));
        assert_eq!(left.list.len(), stays.len(), "{}: as many items are left as were to stay", provider.name);
        for (after, before) in left.list.iter().zip(&stays) {
            assert_eq!(after.parts, before.parts, "{}: an item that stays keeps its key", provider.name);
            assert_eq!(
                body.get(after.span.clone()),
                input.body.get(before.span.clone()),
                "{}: an item that stays keeps its bytes",
                provider.name
            );
        }
    }
});
