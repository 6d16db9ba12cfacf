//! A run whose feeds and fetches come in several parts.
//!
//! - **R1** Every feed is fed once and every fetch is fetched once; the part after which nothing is left is the last.
//! - **R2** A fetch is not asked for before all feeds that it needs are there.

use super::error::MasterError;
use super::prune::Signature;

/// What was announced, and how much of it has come.
#[derive(Clone, Debug)]
pub struct PartialRun {
    signature: Signature,
    needs: Vec<Vec<usize>>,
    fed: Vec<bool>,
    fetched: Vec<bool>,
}

/// One part: places of its feeds and fetches in the announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Feeds.
    pub feeds: Vec<usize>,
    /// Fetches.
    pub fetches: Vec<usize>,
    /// Nothing is left after it.
    pub last: bool,
}

impl PartialRun {
    /// A run of which nothing has come. `needs` says for each fetch which feeds it needs.
    #[must_use]
    pub fn new(signature: Signature, needs: Vec<Vec<usize>>) -> PartialRun {
        let (fed, fetched) = (vec![false; signature.feeds.len()], vec![false; signature.fetches.len()]);
        PartialRun { signature, needs, fed, fetched }
    }

    /// Takes in the next part.
    ///
    /// # Errors
    /// [`MasterError`] for what was not announced, has come before, or comes too early (R1, R2); then nothing changes.
    pub fn next<'a>(
        &mut self,
        feeds: impl Iterator<Item = &'a str>,
        fetches: impl Iterator<Item = &'a str>,
    ) -> Result<Share, MasterError> {
        let (mut fed, mut fetched) = (self.fed.clone(), self.fetched.clone());
        let feeds = mark(feeds, &self.signature.feeds, &mut fed, "feed", "fed")?;
        let fetches = mark(fetches, &self.signature.fetches, &mut fetched, "fetch", "fetched")?;
        for fetch in &fetches {
            if let Some(missing) = self.needs[*fetch].iter().find(|feed| !fed[**feed]) {
                return Err(MasterError::TooEarly {
                    fetch: self.signature.fetches[*fetch].clone(),
                    missing: self.signature.feeds[*missing].clone(),
                });
            }
        }
        let last = fed.iter().chain(&fetched).all(|done| *done);
        (self.fed, self.fetched) = (fed, fetched);
        Ok(Share { feeds, fetches, last })
    }
}

fn mark<'a>(
    names: impl Iterator<Item = &'a str>,
    announced: &[String],
    marks: &mut [bool],
    what: &'static str,
    done: &'static str,
) -> Result<Vec<usize>, MasterError> {
    let mut places = Vec::new();
    for name in names {
        let at = announced.iter().position(|known| known == name);
        let at = at.ok_or_else(|| MasterError::NotAnnounced { what, name: name.to_owned() })?;
        if std::mem::replace(&mut marks[at], true) {
            return Err(MasterError::Again { what, name: name.to_owned(), done });
        }
        places.push(at);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> PartialRun {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let signature = Signature {
            feeds: names(&["a:0", "b:0", "c:0"]),
            fetches: names(&["s:0", "p:0"]),
            ..Signature::default()
        };
        PartialRun::new(signature, vec![vec![0, 1], vec![0, 1, 2]])
    }

    fn part(run: &mut PartialRun, feeds: &[&str], fetches: &[&str]) -> Result<Share, String> {
        run.next(feeds.iter().copied(), fetches.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn r1_each_comes_once_and_the_last_is_known() {
        let mut run = run();
        assert!(!part(&mut run, &["a:0", "b:0"], &["s:0"]).unwrap().last);
        assert!(part(&mut run, &["a:0"], &[]).unwrap_err().contains("The feed a:0 has already been fed."));
        assert!(part(&mut run, &[], &["s:0"]).unwrap_err().contains("already been fetched"));
        assert!(
            part(&mut run, &["d:0"], &[]).unwrap_err().contains("was not specified in partial_run_setup")
        );
        let last = part(&mut run, &["c:0"], &["p:0"]).unwrap();
        assert_eq!(last, Share { feeds: vec![2], fetches: vec![1], last: true });
    }

    #[test]
    fn r2_a_fetch_waits_for_its_feeds() {
        let mut run = run();
        let error = part(&mut run, &["a:0", "b:0"], &["p:0"]).unwrap_err();
        assert!(
            error.starts_with("Fetch p:0 can't be computed from the feeds that have been fed so far"),
            "{error}"
        );
        // Nothing of the refused part counts.
        part(&mut run, &["a:0", "b:0"], &["s:0"]).unwrap();
    }
}
