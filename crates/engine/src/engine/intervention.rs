//! What plugins ask for pods other than the one at hand. It is carried out once the engine has done what it was called for.

use loadmaster_framework::waiting::Intervention;

use super::effect::{Effect, Effects, Tell};
use super::news::Verdict;
use super::{Asking, Engine};
use crate::queue::SeatIdx;
use crate::time::Now;

impl Engine {
    /// Carries out what was asked for, and what is asked for in turn. That comes to an end: verdicts that do anything take a pod
    /// from those that Permit holds, and nothing else here calls a serial point.
    pub(super) fn intervene(&mut self, now: Now, effects: &mut Effects) {
        loop {
            let mut is_done = true;
            for at in 0..self.seats.len() {
                for wanted in self.seats[at].scheduler.states_mut().take_interventions() {
                    is_done = false;
                    self.carry_out(now, SeatIdx(at as u32), wanted, effects);
                }
            }
            if is_done {
                return;
            }
        }
    }

    fn carry_out(&mut self, now: Now, seat: SeatIdx, wanted: Intervention, effects: &mut Effects) {
        match wanted {
            Intervention::Allow { uid, plugin } => {
                self.permitted(now, &uid, Some(plugin), &Verdict::Allow, effects);
            }
            Intervention::Reject { uid, plugin, why } => {
                let verdict = Verdict::Reject(why.into_owned());
                self.permitted(now, &uid, Some(plugin), &verdict, effects);
            }
            Intervention::Activate(uids) => self.activate(now, &uids),
            Intervention::Tell(event) => effects.push(Effect::Tell(Tell {
                is_warning: event.is_warning,
                reason: event.reason,
                action: event.action,
                note: event.note,
                regarding: (&*event.pod).into(),
                related: None,
                controller: self.scheduler_name(seat),
            })),
        }
    }

    pub(super) fn activate(&mut self, now: Now, uids: &[Box<str>]) {
        let asking = Asking::new(&self.seats, &self.interests, &self.world);
        let uids: Vec<&str> = uids.iter().map(|uid| &**uid).collect();
        self.queue.activate(now, &asking, &uids);
    }
}
