//! Runs that workers know already, by what they were made for.

use std::collections::HashMap;

use super::prune::Signature;

/// Runs that one session keeps at its workers.
pub const PLANS_LIMIT: usize = 1024;

/// Values by signature; past the limit the one that was longest unused goes.
#[derive(Debug)]
pub struct Plans<T> {
    all: HashMap<Signature, (u64, T)>,
    uses: u64,
    limit: usize,
}

impl<T> Default for Plans<T> {
    fn default() -> Self {
        Plans::with_limit(PLANS_LIMIT)
    }
}

impl<T> Plans<T> {
    /// At most `limit` values; 1 at least.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Plans { all: HashMap::new(), uses: 0, limit: limit.max(1) }
    }

    /// The value of a signature.
    pub fn get(&mut self, signature: &Signature) -> Option<&T> {
        self.uses += 1;
        let (used, value) = self.all.get_mut(signature)?;
        *used = self.uses;
        Some(value)
    }

    /// Adds a value, and takes out the one that has to go for it.
    pub fn insert(&mut self, signature: Signature, value: T) -> Option<T> {
        self.uses += 1;
        let replaced = self.all.insert(signature, (self.uses, value));
        if replaced.is_some() || self.all.len() <= self.limit {
            return replaced.map(|(_, value)| value);
        }
        let oldest =
            self.all.iter().min_by_key(|(_, (used, _))| *used).map(|(signature, _)| signature.clone());
        oldest.and_then(|oldest| self.all.remove(&oldest)).map(|(_, value)| value)
    }

    /// Takes out the value of a signature.
    pub fn remove(&mut self, signature: &Signature) -> Option<T> {
        self.all.remove(signature).map(|(_, value)| value)
    }

    /// Takes all out.
    pub fn drain(&mut self) -> Vec<T> {
        self.all.drain().map(|(_, (_, value))| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes() {
        let signature = |fetch: &str| Signature { fetches: vec![fetch.to_owned()], ..Signature::default() };
        let mut plans = Plans::with_limit(2);
        assert_eq!(plans.insert(signature("a"), 1), None);
        assert_eq!(plans.insert(signature("b"), 2), None);
        assert_eq!(plans.get(&signature("a")), Some(&1));
        assert_eq!(plans.insert(signature("c"), 3), Some(2));
        assert_eq!(plans.get(&signature("b")), None);
        assert_eq!(plans.insert(signature("c"), 4), Some(3));
        assert_eq!(plans.remove(&signature("c")), Some(4));
        assert_eq!(plans.drain(), [1]);
    }
}
