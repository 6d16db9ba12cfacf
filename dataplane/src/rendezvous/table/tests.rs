use super::*;
use crate::transport::seed::Seeded;
use std::collections::{BTreeMap, BTreeSet};

fn key(n: u64) -> Key {
    Key::new(&format!("k{n}")).unwrap()
}

const STEP: StepId = StepId(7);

#[test]
fn a_value_meets_its_waiter_whoever_comes_first() {
    // R1
    let mut table: Table<u32, &str> = Table::default();
    assert!(matches!(table.send(STEP, &key(0), 1), Ok(Sent::Kept)));
    assert!(matches!(table.send(STEP, &key(0), 2), Err(Refusal::Twice)));
    assert!(matches!(table.recv(StepId(8), &key(0), "other step"), Ok(Received::Waits(_))));
    assert!(matches!(table.recv(STEP, &key(0), "a"), Ok(Received::Met(1, "a"))));
    assert!(matches!(table.recv(STEP, &key(1), "b"), Ok(Received::Waits(_))));
    assert!(matches!(table.recv(STEP, &key(1), "c"), Err((Refusal::Twice, "c"))));
    assert!(matches!(table.send(STEP, &key(1), 3), Ok(Sent::Met(3, "b"))));
    assert_eq!(table.counts(), (0, 1, 1), "R4");
}

#[test]
fn the_first_reason_reaches_everybody() {
    // R3
    let mut table: Table<u32, &str> = Table::default();
    let away = table.wait_for_answer(STEP, "away").unwrap();
    let Ok(Received::Waits(here)) = table.recv(STEP, &key(0), "here") else { panic!() };
    table.send(STEP, &key(1), 5).unwrap();
    let rest = table.abort(STEP, Why::new(3, "no memory")).unwrap();
    assert_eq!((rest.waiters, rest.values), (vec![(away, "away"), (here, "here")], vec![5]));
    assert!(table.abort(STEP, Why::new(4, "later")).is_none() && table.cleanup(STEP).is_none());
    let ended = Refusal::Ended(Ended::Aborted(Why::new(3, "no memory")));
    assert_eq!(table.send(STEP, &key(0), 1).unwrap_err(), ended);
    assert_eq!(table.recv(STEP, &key(0), "late").unwrap_err().0, ended);
    assert_eq!(table.wait_for_answer(STEP, "late").unwrap_err().0, ended);
    // Remembered until others have ended.
    for n in 0..MAX_ENDED as i64 {
        assert!(table.ended(STEP).is_some());
        table.cleanup(StepId(100 + n)).unwrap();
    }
    assert!(table.ended(STEP).is_none() && table.ended.len() == MAX_ENDED);
    assert_eq!(table.counts(), (0, 0, 0));
}

#[test]
fn a_waiter_leaves_once() {
    // R2: an id of one that has left is nobody's, also when its seat is another's.
    let mut table: Table<u32, u32> = Table::default();
    let Ok(Received::Waits(first)) = table.recv(STEP, &key(0), 1) else { panic!() };
    assert_eq!(table.take(first), Some(1));
    let Ok(Received::Waits(second)) = table.recv(STEP, &key(0), 2) else { panic!() };
    assert!(table.take(first).is_none() && table.waiter(first).is_none());
    assert_eq!(table.waiter(second), Some((STEP, &2)));
    assert_eq!(table.take_where(|w| *w == 2), [(STEP, 2)]);
    assert!(table.take(second).is_none());
    assert!(table.take(WaiterId(u64::MAX)).is_none());
    assert_eq!(table.counts(), (0, 0, 0), "R4");
}

/// What the table should do, in the simplest terms.
#[derive(Default)]
struct Model {
    values: BTreeMap<(i64, u64), u64>,
    waiting: BTreeMap<(i64, u64), u64>,
    away: BTreeMap<u64, i64>,
    ended: BTreeMap<i64, u32>,
}

fn play(seed: u64) {
    let mut random = Seeded::of(seed, 1, 2);
    let (mut table, mut model) = (Table::<u64, u64>::default(), Model::default());
    let mut ids: BTreeMap<u64, WaiterId> = BTreeMap::new();
    for n in 0..400u64 {
        let (step, k) = (random.below(4) as i64, random.below(5));
        let (id, name) = (StepId(step), key(k));
        let refused = |refusal: &Refusal| match (refusal, model.ended.get(&step)) {
            (Refusal::Ended(Ended::Aborted(why)), Some(code)) => why.code == *code,
            (Refusal::Ended(Ended::Over), Some(0)) => true,
            (Refusal::Twice, None) => true,
            _ => false,
        };
        match random.below(20) {
            0..=6 => match table.send(id, &name, n) {
                Ok(Sent::Kept) => {
                    assert!(!model.ended.contains_key(&step) && !model.waiting.contains_key(&(step, k)));
                    assert_eq!(model.values.insert((step, k), n), None, "seed {seed}, R1");
                }
                Ok(Sent::Met(value, who)) => {
                    assert_eq!((value, model.waiting.remove(&(step, k))), (n, Some(who)), "seed {seed}, R1");
                    ids.remove(&who);
                }
                Err(refusal) => {
                    assert!(refused(&refusal), "seed {seed}: {refusal:?}");
                    assert!(
                        refusal != Refusal::Twice || model.values.contains_key(&(step, k)),
                        "seed {seed}"
                    );
                }
            },
            7..=13 => match table.recv(id, &name, n) {
                Ok(Received::Waits(waiter)) => {
                    assert!(!model.ended.contains_key(&step) && !model.values.contains_key(&(step, k)));
                    assert_eq!(model.waiting.insert((step, k), n), None, "seed {seed}, R1");
                    ids.insert(n, waiter);
                }
                Ok(Received::Met(value, who)) => {
                    assert_eq!((model.values.remove(&(step, k)), who), (Some(value), n), "seed {seed}, R1");
                }
                Err((refusal, _)) => {
                    assert!(refused(&refusal), "seed {seed}: {refusal:?}");
                    assert!(
                        refusal != Refusal::Twice || model.waiting.contains_key(&(step, k)),
                        "seed {seed}"
                    );
                }
            },
            14 | 15 => match table.wait_for_answer(id, n) {
                Ok(waiter) => {
                    assert!(!model.ended.contains_key(&step), "seed {seed}, R3");
                    model.away.insert(n, step);
                    ids.insert(n, waiter);
                }
                Err((refusal, _)) => assert!(refused(&refusal), "seed {seed}: {refusal:?}"),
            },
            16 | 17 => {
                let pick = random.below(ids.len().max(1) as u64) as usize;
                let Some((who, waiter)) = ids.iter().nth(pick).map(|(a, b)| (*a, *b)) else { continue };
                assert_eq!(table.take(waiter), Some(who), "seed {seed}, R2");
                assert_eq!(table.take(waiter), None, "seed {seed}, R2");
                ids.remove(&who);
                model.away.remove(&who);
                model.waiting.retain(|_, w| *w != who);
            }
            18 if random.below(3) == 0 => {
                let abort = random.below(2) == 0;
                let rest = if abort { table.abort(id, Why::new(n as u32, "x")) } else { table.cleanup(id) };
                assert_eq!(rest.is_none(), model.ended.contains_key(&step), "seed {seed}, R3");
                let Some(rest) = rest else { continue };
                model.ended.insert(step, if abort { n as u32 } else { 0 });
                let mut waiters: BTreeSet<u64> =
                    model.waiting.iter().filter(|((s, _), _)| *s == step).map(|(_, w)| *w).collect();
                waiters.extend(model.away.iter().filter(|(_, s)| **s == step).map(|(w, _)| *w));
                let left: Vec<_> = waiters.iter().map(|who| (ids[who], *who)).collect();
                assert_eq!(rest.waiters, left, "seed {seed}, R2");
                let values: BTreeSet<u64> =
                    model.values.iter().filter(|((s, _), _)| *s == step).map(|(_, v)| *v).collect();
                assert_eq!(rest.values.into_iter().collect::<BTreeSet<_>>(), values, "seed {seed}");
                model.values.retain(|(s, _), _| *s != step);
                model.waiting.retain(|(s, _), _| *s != step);
                model.away.retain(|_, s| *s != step);
                ids.retain(|who, _| !waiters.contains(who));
            }
            _ => {}
        }
        let (values, waiting, steps) = table.counts();
        assert_eq!((values, waiting), (model.values.len(), ids.len()), "seed {seed}, action {n}");
        let live: BTreeSet<i64> = model.values.keys().chain(model.waiting.keys()).map(|(s, _)| *s).collect();
        let live: BTreeSet<i64> = live.into_iter().chain(model.away.values().copied()).collect();
        assert_eq!(steps, live.len(), "seed {seed}, action {n}, R4");
    }
}

#[test]
fn any_order_of_calls_does_as_the_model() {
    (0..500).for_each(play);
}
