//! Hostile bodies, read by every provider's rules: no panic, items inside the body and in its order, no part empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umavez_fuzz::{Input, providers};

fuzz_target!(|bytes: &[u8]| {
    let input = Input::of(bytes);
    let delivery = input.delivery(input.body);
    for provider in providers() {
        let items = provider.items(&delivery);
        let mut from = 0;
        for item in &items.list {
            assert!(
                from <= item.span.start && item.span.start <= item.span.end,
                "items are in the body's order"
            );
            assert!(item.span.end <= input.body.len(), "an item is inside the body");
            from = item.span.start;
            assert!(!item.place().is_empty());
            match &item.parts {
                Ok(parts) => assert!(
                    !parts.is_empty() && parts.iter().all(|part| !part.trim_ascii().is_empty()),
                    "no part is blank"
                ),
                Err(keyless) => assert!(!keyless.to_string().is_empty()),
            }
        }
    }
});
