//! Where a route's deliveries are written to files, and how many may lie there.

use std::path::Path;

use super::Capture;
use super::problem::Fault;
use super::sections::MIB;
use super::source::Section;

const FILES_MAX: usize = 100;
const FILES_MOST: usize = 100_000;
const BYTES_MAX: usize = 64 * MIB;

/// `None` where nothing is captured, which is the default.
pub(super) fn read(route: &Section<'_>) -> Option<Capture> {
    let deliveries_max = route.count("capture_files", 1..=FILES_MOST);
    let bytes_max = route.size("capture_bytes", MIB..=1024 * 1024 * MIB);
    let Some(field) = route.field("capture_dir") else {
        for name in ["capture_files", "capture_bytes"] {
            if route.field(name).is_some() {
                let fault =
                    Fault::new("bounds nothing: nothing is captured", "write capture_dir, or leave it out");
                route.fail(name, fault);
            }
        }
        return None;
    };
    let text = field.expanded()?.text;
    if text.is_empty() {
        field.fail("names no folder", "write such as \"captures\", or leave it out");
        return None;
    }
    let risk =
        "deliveries are kept in files, with what is personal in them; leave it out once you know your key";
    route.warn("capture_dir", risk);
    let folder = field.source.directory.join(text);
    if route.source.serves()
        && let Some(why) = unwritable(&folder)
    {
        let mend = "no delivery is kept; let umavez's user write there, or name another folder";
        route.warn("capture_dir", format!("{why}: {mend}"));
    }
    Some(Capture {
        folder,
        deliveries_max: deliveries_max.unwrap_or(FILES_MAX),
        bytes_max: bytes_max.unwrap_or(BYTES_MAX),
    })
}

/// Why a folder neither is there to be written nor can be made. Tried where it will be: rights alone don't tell.
fn unwritable(folder: &Path) -> Option<String> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    if !there.is_dir() {
        return Some(format!("{} is no folder", there.display()));
    }
    let error = tempfile::tempfile_in(there).err()?;
    Some(format!("{} can't be written: {error}", there.display()))
}
