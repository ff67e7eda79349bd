//! How many bytes of bodies all requests together may hold, so that strangers can't fill the memory with what they
//! never end. Nobody waits for room, so nobody can wait for ever: a body finds some, or its sender comes again.
//!
//! Who sends steadily has the room before who doesn't: where there is none left, the body that hasn't got on for the
//! longest gives way. And long bodies leave a part of it to short ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::monotonic;

/// A body up to this long is a short one, bytes: it may use the last quarter of the room too.
const SHORT_BYTES_MAX: usize = 64 * 1024;

/// A body that still comes gives way unless so much of it came within so long.
const HEADWAY_BYTES: usize = 64 * 1024;
const HEADWAY_WITHIN: Duration = Duration::from_secs(1);

/// The room of one process. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    /// Bodies that came in part: those that got on last come last.
    coming: BTreeMap<Place, Coming>,
    next: u64,
}

/// When a body got on last, and its number.
type Place = (Instant, u64);

#[derive(Debug)]
struct Coming {
    bytes: usize,
    gives_way: Arc<Notify>,
}

/// There is none left, or it was given to another body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// What one request's bodies take. Free again when it is dropped.
#[derive(Debug)]
pub struct Room {
    rooms: Rooms,
    bytes_max: usize,
    bytes: usize,
    coming: Option<Headway>,
}

#[derive(Debug)]
struct Headway {
    place: Place,
    /// What had come by then.
    bytes: usize,
}

impl Rooms {
    /// Nothing as yet. `bytes_max` is what there is for all, at least three times the longest body.
    pub fn room(&self, bytes_max: usize) -> Room {
        Room { rooms: self.clone(), bytes_max, bytes: 0, coming: None }
    }

    /// What all bodies take now.
    pub fn bytes(&self) -> usize {
        self.taken().bytes
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// When there are none for this body: what it had stays taken until it is dropped.
    pub fn grow(&mut self, more: usize) -> Result<(), NoRoom> {
        self.grow_at(monotonic(), more)
    }

    /// From here on the body may have to give way, which is told by what is returned.
    pub fn wait_for_more(&mut self) -> Arc<Notify> {
        self.wait_at(monotonic())
    }

    /// The body has come whole: it keeps its room.
    ///
    /// # Errors
    /// When it was given away meanwhile.
    pub fn complete(&mut self) -> Result<(), NoRoom> {
        let Some(Headway { place, .. }) = self.coming.take() else { return Ok(()) };
        let kept = self.rooms.taken().coming.remove(&place);
        if kept.is_none() {
            self.bytes = 0;
        }
        kept.map(drop).ok_or(NoRoom)
    }

    fn grow_at(&mut self, now: Instant, more: usize) -> Result<(), NoRoom> {
        let mut taken = self.rooms.taken();
        let own = self.coming.as_ref().map(|headway| headway.place);
        if own.is_some_and(|place| !taken.coming.contains_key(&place)) {
            return Err(NoRoom);
        }
        let wanted = self.bytes.saturating_add(more);
        let left_to_others = if wanted > SHORT_BYTES_MAX { self.bytes_max / 4 } else { 0 };
        while taken.bytes.saturating_add(more) > self.bytes_max - left_to_others {
            taken.take_from_the_slowest(now, own)?;
        }
        taken.bytes += more;
        self.bytes = wanted;
        if let Some(headway) = &mut self.coming {
            let mut coming = taken.coming.remove(&headway.place).expect("looked up above");
            coming.bytes = wanted;
            if wanted - headway.bytes >= HEADWAY_BYTES {
                *headway = Headway { place: (now, headway.place.1), bytes: wanted };
            }
            taken.coming.insert(headway.place, coming);
        }
        Ok(())
    }

    fn wait_at(&mut self, now: Instant) -> Arc<Notify> {
        let mut taken = self.rooms.taken();
        let place = (now, taken.next);
        taken.next += 1;
        let gives_way = Arc::new(Notify::new());
        taken.coming.insert(place, Coming { bytes: self.bytes, gives_way: Arc::clone(&gives_way) });
        self.coming = Some(Headway { place, bytes: self.bytes });
        gives_way
    }
}

impl Taken {
    /// Takes the room of the body that hasn't got on for the longest: but not for one that got on even less.
    fn take_from_the_slowest(&mut self, now: Instant, asking: Option<Place>) -> Result<(), NoRoom> {
        let first = self.coming.first_entry().ok_or(NoRoom)?;
        let place = *first.key();
        if asking == Some(place) || now.saturating_duration_since(place.0) < HEADWAY_WITHIN {
            return Err(NoRoom);
        }
        let slowest = first.remove();
        self.bytes -= slowest.bytes;
        slowest.gives_way.notify_one();
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Given away already, it is another's.
        if self.complete().is_ok() {
            self.rooms.taken().bytes -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn there_is_no_more_room_than_there_is() {
        let rooms = Rooms::default();
        let (mut short, mut long) = (rooms.room(1024 * KIB), rooms.room(1024 * KIB));
        assert_eq!(long.grow(769 * KIB), Err(NoRoom), "a quarter is for short ones");
        assert_eq!(long.grow(768 * KIB), Ok(()));
        assert_eq!(short.grow(64 * KIB), Ok(()));
        assert_eq!(short.grow(1), Err(NoRoom), "it isn't short any more");
        let shorts: Vec<Room> = (0..4)
            .map(|n| {
                let mut another = rooms.room(1024 * KIB);
                assert_eq!(another.grow(64 * KIB), if n < 3 { Ok(()) } else { Err(NoRoom) }, "{n}");
                another
            })
            .collect();
        assert_eq!(rooms.bytes(), 1024 * KIB);
        drop((short, shorts));
        assert_eq!(rooms.bytes(), 768 * KIB);
        assert_eq!(long.complete(), Ok(()));
        drop(long);
        assert_eq!(rooms.bytes(), 0);
    }

    #[test]
    fn who_does_not_get_on_gives_way_to_who_does() {
        // Twenty senders that never ended their bodies filled the memory; refusing all others would be no better.
        let rooms = Rooms::default();
        let start = monotonic();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut bodies: Vec<(Room, Arc<Notify>)> = (0..3)
            .map(|n| {
                let mut room = rooms.room(1024 * KIB);
                room.grow_at(at(n), 200 * KIB).unwrap();
                let gives_way = room.wait_at(at(n));
                (room, gives_way)
            })
            .collect();
        let mut new = rooms.room(1024 * KIB);
        assert_eq!(new.grow_at(at(900), 200 * KIB), Err(NoRoom), "all are new");
        assert_eq!(bodies[0].0.grow_at(at(950), 64 * KIB), Ok(()), "the first gets on");
        assert_eq!(bodies[2].0.grow_at(at(950), 1), Ok(()), "this one hardly does");
        assert_eq!(new.grow_at(at(1010), 200 * KIB), Ok(()), "in the second's place");
        assert_eq!(rooms.bytes(), (200 + 64 + 200 + 200) * KIB + 1);
        assert_eq!(bodies[1].0.grow_at(at(1010), 1), Err(NoRoom));
        assert_eq!(bodies[1].0.complete(), Err(NoRoom));
        assert_eq!(bodies[2].0.grow_at(at(1100), 300 * KIB), Err(NoRoom), "it is the slowest itself");
        drop(bodies.remove(1));
        assert_eq!(
            rooms.bytes(),
            (200 + 64 + 200 + 200) * KIB + 1,
            "what was given away isn't given back twice"
        );
        assert_eq!(bodies[0].0.complete(), Ok(()));
        assert_eq!(new.grow_at(at(9000), 200 * KIB), Ok(()), "in the third's place");
        assert_eq!(new.grow_at(at(9000), 200 * KIB), Err(NoRoom), "the first has come whole");
        drop((bodies, new));
        assert_eq!((rooms.bytes(), rooms.taken().coming.len()), (0, 0));
    }
}
