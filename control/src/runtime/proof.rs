//! What the processes of a job prove themselves to each other with on the data plane.
//!
//! The coordination service draws a secret for each group, and tells it to the members; two tasks that are in no group tell
//! each other one each. Keys are made of these and of the job's token (`RINGWAY_TOKEN`), so that who only listens to the
//! control plane does not have them where there is a token.

use crate::settings::Settings;
use ringway_dataplane::transport::Key;
use ringway_dataplane::transport::authentication::SECRET_BYTES;

/// The key of a group's members.
pub(super) fn group_key(secret: [u8; SECRET_BYTES], job_id: &str, settings: &Settings) -> Key {
    Key::new(secret).bound_to(&[job_id.as_bytes(), token(settings)])
}

/// The key of two tasks that told each other these secrets, for `purpose`; `None` when one is no secret.
pub(super) fn pair_key(mine: &[u8], theirs: &[u8], purpose: &str, settings: &Settings) -> Option<Key> {
    let key = Key::between(mine.try_into().ok()?, theirs.try_into().ok()?);
    Some(key.bound_to(&[purpose.as_bytes(), token(settings)]))
}

/// Tells jobs and tokens apart without telling them.
pub(super) fn job_of(purpose: &str, settings: &Settings) -> u64 {
    let digest = Key::new([0; SECRET_BYTES]).prove("ringway job", &[purpose.as_bytes(), token(settings)]);
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

fn token(settings: &Settings) -> &[u8] {
    settings.token.as_ref().map_or(&[], |token| token.reveal().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_those_who_share_all_of_it() {
        let settings = |pairs: &[(&str, &str)]| Settings::from_pairs(pairs.iter().copied()).unwrap();
        let (none, one) = (settings(&[]), settings(&[("RINGWAY_TOKEN", "open-sesame-please")]));
        assert!(group_key([1; 32], "j", &none) == group_key([1; 32], "j", &none));
        assert!(group_key([1; 32], "j", &none) != group_key([1; 32], "j", &one));
        assert!(group_key([1; 32], "j", &one) != group_key([2; 32], "j", &one));
        assert!(group_key([1; 32], "j", &one) != group_key([1; 32], "k", &one));
        let (a, b) = ([1; 32], [2; 32]);
        assert!(pair_key(&a, &b, "p", &one).is_some());
        assert!(pair_key(&a, &b, "p", &one) == pair_key(&b, &a, "p", &one));
        assert!(pair_key(&a, &b, "p", &one) != pair_key(&a, &b, "q", &one));
        assert!(pair_key(&a, &b[..31], "p", &one).is_none() && pair_key(&[], &b, "p", &one).is_none());
        assert!(job_of("p", &none) == job_of("p", &none) && job_of("p", &none) != job_of("p", &one));
    }
}
