//! Numbered places for operations in flight, with generations, so that a stale number from the wire finds nothing.

/// A place's number as it travels: index in the lower half, generation in the upper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u64);

impl SlotId {
    fn new(index: u32, generation: u32) -> SlotId {
        SlotId(u64::from(generation) << 32 | u64::from(index))
    }

    /// The index alone, which names the place while it is taken.
    pub fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// Places for up to a fixed number of values. Allocates until the most that were ever in use have been seen, and
/// never after.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slots<T> {
    pub(super) fn new(limit: u32) -> Slots<T> {
        Slots { places: Vec::new(), free: Vec::new(), limit: limit as usize }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether a peer may know of such a number: its index was handed out at some time.
    pub(super) fn known(&self, id: SlotId) -> bool {
        id.index() < self.places.len()
    }

    /// The number of what is at this index now.
    pub(super) fn at(&self, index: u32) -> Option<SlotId> {
        let place = self.places.get(index as usize)?;
        place.value.as_ref().map(|_| SlotId::new(index, place.generation))
    }

    /// Puts `value` away, or gives it back when all places are taken.
    #[inline]
    pub(super) fn put(&mut self, value: T) -> Result<SlotId, T> {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.value = Some(value);
            return Ok(SlotId::new(index, place.generation));
        }
        if self.places.len() == self.limit {
            return Err(value);
        }
        self.places.push(Place { generation: 1, value: Some(value) });
        // Giving back must not allocate.
        self.free.reserve(self.places.len());
        Ok(SlotId::new((self.places.len() - 1) as u32, 1))
    }

    #[inline]
    pub(super) fn get(&self, id: SlotId) -> Option<&T> {
        let place = self.places.get(id.index())?;
        if place.generation == id.generation() { place.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index())?;
        if place.generation == id.generation() { place.value.as_mut() } else { None }
    }

    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> Option<T> {
        let place = self.places.get_mut(id.index())?;
        if place.generation != id.generation() {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index() as u32);
        Some(value)
    }

    pub(super) fn find(&self, mut wanted: impl FnMut(&T) -> bool) -> Option<SlotId> {
        self.places.iter().enumerate().find_map(|(i, p)| {
            p.value.as_ref().filter(|v| wanted(v)).map(|_| SlotId::new(i as u32, p.generation))
        })
    }

    /// Takes any one value, until none is left.
    pub(super) fn take_any(&mut self) -> Option<T> {
        self.find(|_| true).and_then(|id| self.take(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_numbers_find_nothing() {
        let mut slots = Slots::new(2);
        let a = slots.put('a').unwrap();
        let b = slots.put('b').unwrap();
        assert_eq!(slots.put('c'), Err('c'));
        assert_eq!(slots.take(a), Some('a'));
        assert_eq!((slots.take(a), slots.get(a), slots.len()), (None, None, 1));
        let c = slots.put('c').unwrap();
        assert!(c != a && slots.known(a) && slots.get(c) == Some(&'c'));
        assert_eq!(slots.find(|v| *v == 'b'), Some(b));
        assert!(!slots.known(SlotId(7)) && slots.get(SlotId(u64::MAX)).is_none());
    }
}
