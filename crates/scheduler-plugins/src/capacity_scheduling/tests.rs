use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use loadmaster_framework::plugin_log::collect_log_lines;
use loadmaster_framework::testkit::incremental_history::check_incremental_history;
use loadmaster_framework::testkit::{PluginTestBench, PodBuilder, node, pod};
use loadmaster_framework::world::DryRun;
use loadmaster_framework::{NamespaceTotal, ObjectSlot, Resources};
use serde_json::json;

use super::*;

fn add_quota(bench: &mut PluginTestBench, namespace: &str, name: &str, spec: Value) {
    let metadata = json!({"name": name, "namespace": namespace});
    bench.object(&elastic_quotas(), json!({"metadata": metadata, "spec": spec})).unwrap();
}

fn cpus(min: &str, max: &str) -> Value {
    json!({"min": {"cpu": min}, "max": {"cpu": max}})
}

/// Two nodes with 4 CPUs each; quotas of `red` (2 to 6 CPUs) and `blue` (4 to 6 CPUs).
fn bench() -> PluginTestBench {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    bench.node(node("b")).unwrap();
    add_quota(&mut bench, "red", "quota", cpus("2", "6"));
    add_quota(&mut bench, "blue", "quota", cpus("4", "6"));
    bench
}

fn of(namespace: &str, name: &str, cpu: &str, priority: i32) -> PodBuilder {
    pod(name).namespace(namespace).request("cpu", cpu).priority(priority)
}

fn assign(bench: &mut PluginTestBench, on: &str, pod: PodBuilder) {
    bench.add_assigned_pod(on, pod).unwrap();
}

#[track_caller]
fn check_pre_filter(bench: &mut PluginTestBench, pod: PodBuilder, want: &Expect) {
    want.assert_eq(&bench.pre_filter(pod.clone()).unwrap());
    let pod = bench.parse_pod(pod).unwrap();
    bench.check_incremental(&pod).unwrap();
}

#[test]
fn a_pod_fits_below_its_maximum_and_the_sum_of_all_minimums() {
    let mut bench = bench();
    let fits = expect!["All"];
    check_pre_filter(&mut bench, of("red", "new", "6", 0), &fits);
    check_pre_filter(
        &mut bench,
        of("red", "new", "7", 0),
        &expect![
            "Unschedulable Pod red/new is rejected in PreFilter because ElasticQuota red is more than Max"
        ],
    );
    assign(&mut bench, "a", of("blue", "p1", "3", 0));
    check_pre_filter(&mut bench, of("red", "new", "3", 0), &fits);
    check_pre_filter(
        &mut bench,
        of("red", "new", "4", 0),
        &expect![
            "Unschedulable Pod red/new is rejected in PreFilter because total ElasticQuota used is more than min"
        ],
    );
    // Namespaces without a quota are not limited, and their pods do not count.
    assign(&mut bench, "b", of("green", "p2", "4", 0));
    check_pre_filter(&mut bench, of("green", "new", "100", 0), &fits);
    check_pre_filter(&mut bench, of("red", "new", "3", 0), &fits);
}

#[test]
fn bounds() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    let mut check = |spec: Value, resource: &str, fits: bool| {
        add_quota(&mut bench, "red", "quota", spec);
        // Plenty for the sum.
        let plenty = json!({"min": {"cpu": "1k", "memory": "1Ti", "ephemeral-storage": "1Ti", "example.com/gpu": 100}});
        add_quota(&mut bench, "plenty", "quota", plenty);
        let pod = pod("new").namespace("red").request(resource, "1");
        assert_eq!(bench.pre_filter(pod).unwrap() == "All", fits);
    };
    check(json!({}), "cpu", true);
    check(json!({"max": null}), "memory", true);
    check(json!({"max": {}}), "cpu", false);
    // CPU, memory and ephemeral storage that a maximum does not list are forbidden; other resources are not.
    check(json!({"max": {"cpu": 4}}), "memory", false);
    check(json!({"max": {"cpu": 4}}), "ephemeral-storage", false);
    check(json!({"max": {"cpu": 4}}), "example.com/gpu", true);
    check(json!({"max": {"example.com/gpu": 0}}), "example.com/gpu", false);
    check(json!({"max": {"cpu": 1, "memory": 1}}), "cpu", true);
}

#[test]
fn sums_are_exact_whenever_the_quota_comes() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    assign(&mut bench, "a", of("red", "p1", "2", 0));
    check_pre_filter(&mut bench, of("red", "new", "2", 0), &expect!["All"]);
    // Upstream begins with no use when a quota is created after its pods.
    add_quota(&mut bench, "red", "quota", cpus("3", "3"));
    let is_rejected = expect![
        "Unschedulable Pod red/new is rejected in PreFilter because ElasticQuota red is more than Max"
    ];
    check_pre_filter(&mut bench, of("red", "new", "2", 0), &is_rejected);
    add_quota(&mut bench, "red", "quota", cpus("4", "4"));
    check_pre_filter(&mut bench, of("red", "new", "2", 0), &expect!["All"]);
    // The first one by name counts.
    add_quota(&mut bench, "red", "a-quota", cpus("1", "1"));
    check_pre_filter(&mut bench, of("red", "new", "2", 0), &is_rejected);
    bench.delete_object(&elastic_quotas(), "red", "a-quota");
    bench.delete_object(&elastic_quotas(), "red", "quota");
    check_pre_filter(&mut bench, of("red", "new", "2", 0), &expect!["All"]);
}

/// The total over all namespaces with a quota, by looking at all pods.
fn naive_total(world: &World, slot: &ObjectSlot<ElasticQuota>) -> NamespaceTotal {
    let mut total = NamespaceTotal::default();
    let mut namespaces = BTreeSet::new();
    for (info, quota) in world.watched_objects().lister(slot).iter() {
        if !namespaces.insert(info.namespace.clone()) {
            continue;
        }
        total.object_amounts.add_or_subtract(quota.min.amounts(), 1);
        let pods = world.node_infos().flat_map(|node| node.pods().cloned().collect::<Vec<_>>());
        for pod in pods.filter(|pod| pod.template.namespace == info.namespace) {
            total.pods.pods += 1;
            total.pods.amounts.add_or_subtract(&pod.requests().resources, 1);
        }
    }
    total
}

/// Sums without resources of which nothing is left.
fn normalized(total: &NamespaceTotal) -> NamespaceTotal {
    let mut total = total.clone();
    total.pods.amounts.scalars.retain(|(_, amount)| *amount != 0);
    total.object_amounts.scalars.retain(|(_, amount)| *amount != 0);
    total
}

#[test]
fn totals_are_those_of_all_pods_and_quotas() {
    let mut bench = bench();
    // The plugin's own slots cannot be read from outside: these are declared as it declares its own.
    let mut points = ExtensionPoints::default();
    let slot = points.watch_in_keys(elastic_quotas(), WatchRequirement::Required);
    let sums =
        points.sum_pods_by_namespace(&slot, |quota: &ElasticQuota| quota.min.amounts().clone());
    points.pod_sums().iter().for_each(|def| bench.world.sum_pods(def));
    let check = |world: &World| {
        let total = world.namespace_total(&sums);
        assert_eq!(normalized(total), normalized(&naive_total(world, &slot)));
        total.pods.pods
    };
    let mut rng = Rng::new(7);
    let (mut n_counted, mut n_in_dry_runs) = (0, 0);
    for _ in 0..3_000 {
        let namespace = *rng.pick(&["red", "blue", "green", "plain"]);
        let name = format!("p{}", rng.below(4));
        let (on, quota) = (*rng.pick(&["a", "b"]), *rng.pick(&["q1", "q2", "quota"]));
        match rng.below(8) {
            0..4 => {
                let gpus = rng.below(2).to_string();
                let pod = of(namespace, &name, &rng.below(3).to_string(), 0)
                    .request("example.com/gpu", &gpus);
                // Finished pods are deleted from the world.
                assign(&mut bench, on, pod);
            }
            4 => bench.delete_pod(&format!("{namespace}/{name}")),
            5 if namespace != "plain" => {
                let spec = json!({"min": {"cpu": rng.below(5), "example.com/gpu": rng.below(3)}});
                add_quota(&mut bench, namespace, quota, spec);
            }
            6 => bench.delete_object(&elastic_quotas(), namespace, quota),
            _ => {
                let pods: Vec<_> = bench
                    .world
                    .node_infos()
                    .flat_map(|node| node.pods().cloned().collect::<Vec<_>>())
                    .collect();
                let before = check(&bench.world);
                let mut run = DryRun::new(&mut bench.world);
                pods.iter().filter(|_| rng.below(2) == 0).for_each(|pod| {
                    run.evict(&pod.uid);
                });
                n_in_dry_runs += i64::from(check(&run) != before);
            }
        }
        n_counted += check(&bench.world);
    }
    assert!(n_counted > 3_000 && n_in_dry_runs > 100, "{n_counted} {n_in_dry_runs}");
}

#[test]
fn nominated_pods_count() {
    let mut bench = bench();
    let nominate = |bench: &mut PluginTestBench, pod: PodBuilder| {
        let pod = Arc::new(bench.parse_pod(pod).unwrap());
        bench.world.add_nominated_pod("a".into(), pod);
    };
    nominate(&mut bench, of("red", "w1", "4", 5));
    let max = expect![
        "Unschedulable Pod red/new is rejected in PreFilter because ElasticQuota red is more than Max"
    ];
    let total = expect![
        "Unschedulable Pod blue/new is rejected in PreFilter because total ElasticQuota used is more than min"
    ];
    let fits = expect!["All"];
    check_pre_filter(&mut bench, of("red", "new", "3", 5), &max);
    check_pre_filter(&mut bench, of("red", "new", "3", 6), &fits);
    // The pod itself does not count.
    check_pre_filter(&mut bench, of("red", "w1", "6", 5), &fits);
    check_pre_filter(&mut bench, of("blue", "new", "3", 9), &total);
    // A namespace that borrows has no claim on what is nominated.
    assign(&mut bench, "b", of("red", "p1", "3", 0));
    check_pre_filter(&mut bench, of("blue", "new", "3", 9), &fits);
    check_pre_filter(&mut bench, of("blue", "new", "4", 9), &total);
}

#[track_caller]
fn check_post_filter(bench: &mut PluginTestBench, pod: PodBuilder, want: &Expect) {
    want.assert_eq(&bench.post_filter(pod.into(), 1).unwrap());
}

#[test]
fn a_namespace_below_its_minimum_reclaims_from_borrowers() {
    let mut bench = bench();
    for (name, on, priority) in [("p1", "a", 9), ("p2", "a", 1), ("p3", "b", 5)] {
        assign(&mut bench, on, of("red", name, "2", priority));
    }
    assign(&mut bench, "b", of("green", "p4", "2", 0));
    // Whatever its priority; not from namespaces without a quota, and no more than was borrowed.
    check_post_filter(&mut bench, of("blue", "new", "2", 0), &expect!["nominates a; evicts p2"]);
    check_post_filter(&mut bench, of("blue", "new", "4", 0), &expect!["nominates a; evicts p1 p2"]);
    // A borrower may only preempt pods of its own namespace.
    check_post_filter(&mut bench, of("red", "new", "2", 7), &expect!["nominates a; evicts p2"]);
    check_post_filter(
        &mut bench,
        of("red", "new", "2", 0),
        &expect![
            "clears; Unschedulable 0/2 nodes are available: 1 No victims found on node a for preemptor pod new, 1 No victims found on node b for preemptor pod new."
        ],
    );
    check_post_filter(&mut bench, of("green", "new", "2", 3), &expect!["nominates b; evicts p4"]);
}

#[test]
fn victims_leave_the_quota_within_its_limits() {
    let mut bench = bench();
    bench.node(node("c").allocatable("cpu", "8")).unwrap();
    for (name, priority) in [("p1", 1), ("p2", 2), ("p3", 3)] {
        assign(&mut bench, "c", of("red", name, "2", priority));
    }
    // It would fit on the node, and on others, but not below the maximum.
    let with_quota = |bench: &mut PluginTestBench, max: &str, want: &Expect| {
        add_quota(bench, "red", "quota", cpus("2", max));
        bench.delete_node("a");
        bench.delete_node("b");
        check_post_filter(bench, of("red", "new", "4", 9), want);
    };
    with_quota(&mut bench, "8", &expect!["nominates c; evicts p2 p1"]);
    with_quota(&mut bench, "6", &expect!["nominates c; evicts p2 p1"]);
    with_quota(&mut bench, "4", &expect!["nominates c; evicts p3 p2 p1"]);
    with_quota(
        &mut bench,
        "3",
        &expect!["clears; Unschedulable 0/1 nodes are available: 1 global quota max exceeded."],
    );
}

#[test]
fn a_preemptor_waits_for_terminating_pods_that_it_may_evict() {
    let mut bench = bench();
    let terminating = |namespace: &str, priority| {
        let time = "2026-01-31T12:00:00Z";
        of(namespace, "gone", "3", priority).set_field("/metadata/deletionTimestamp", time)
    };
    let mut check = |gone: PodBuilder, waits: bool| {
        assign(&mut bench, "a", gone);
        let incoming = of("blue", "new", "4", 5);
        let incoming = incoming.set_field("/status", json!({"nominatedNodeName": "a"}));
        let result = bench.post_filter(incoming.into(), 1).unwrap();
        assert_eq!(result.contains("terminating pod on the nominated node"), waits, "{result}");
        bench.delete_pod("red/gone");
        bench.delete_pod("blue/gone");
        bench.delete_pod("green/gone");
    };
    check(terminating("red", 9), true);
    check(terminating("blue", 4), true);
    check(terminating("blue", 5), false);
    check(terminating("green", 0), false);
}

#[test]
fn cached_evaluations_see_pods_quotas_and_nominations() {
    let mut bench = bench();
    let change = |bench: &mut PluginTestBench, rng: &mut Rng| {
        let namespace = *rng.pick(&["red", "blue", "green"]);
        let name = format!("p{}", rng.below(5));
        let cpu = rng.below(3).to_string();
        let priority = rng.below(3) as i32;
        Ok(match rng.below(7) {
            0..3 => {
                let on = *rng.pick(&["a", "b"]);
                bench.add_assigned_pod(on, of(namespace, &name, &cpu, priority))?;
                "assigned"
            }
            3 => {
                bench.delete_pod(&format!("{namespace}/{name}"));
                "deleted"
            }
            4 => {
                let spec = cpus(&rng.below(5).to_string(), &rng.below(8).to_string());
                add_quota(bench, namespace, "quota", spec);
                "quota"
            }
            5 => {
                bench.delete_object(&elastic_quotas(), namespace, "quota");
                "quota deleted"
            }
            _ => {
                let nominated = bench.parse_pod(of(namespace, "nominated", &cpu, priority))?;
                bench.world.add_nominated_pod("a".into(), Arc::new(nominated));
                "nominated"
            }
        })
    };
    let incoming = |rng: &mut Rng| {
        let namespace = *rng.pick(&["red", "blue", "green"]);
        of(namespace, "new", &rng.below(4).to_string(), rng.below(3) as i32).into()
    };
    check_incremental_history(&mut bench, &mut Rng::new(11), 2_000, incoming, change).unwrap();
}

#[test]
fn the_key_has_all_that_is_read() {
    let mut bench = bench();
    assign(&mut bench, "a", of("red", "p1", "4", 0));
    let report = bench.check_key(of("red", "web", "2", 0)).unwrap();
    assert!(report.keeps("ordinal label"));
}

#[test]
fn explain() {
    let mut bench = bench();
    let check = |bench: &mut PluginTestBench, pod: PodBuilder, want: &Expect| {
        want.assert_eq(&bench.explain(pod).unwrap().join("\n"));
    };
    assign(&mut bench, "a", of("red", "p1", "3", 0));
    let bounds = expect![
        "pod: quota=quota, used=0, min=cpu 4000m, max=cpu 6000m, borrowing=[red (cpu 1000m)]"
    ];
    check(&mut bench, of("blue", "new", "1", 0), &bounds);
    let above_max = expect![
        "pod: quota=quota, used=cpu 3000m, min=cpu 2000m, max=cpu 6000m, short=cpu 500m above max, borrowing=[red (cpu 1000m)]"
    ];
    check(&mut bench, of("red", "new", "3500m", 0), &above_max);
    let above_min = expect![
        "pod: quota=quota, used=0, min=cpu 4000m, max=cpu 6000m, short=cpu 1000m above the sum of all min, borrowing=[red (cpu 1000m)]"
    ];
    check(&mut bench, of("blue", "new", "4", 0), &above_min);
    assert!(bench.explain(of("green", "new", "1", 0)).unwrap().is_empty());
}

#[test]
fn amounts_are_readable() {
    let check = |list: Value, want: &str| {
        let list = serde_json::from_value(list).unwrap();
        assert_eq!(quota::resource_text(&Resources::from_resource_list(&list)), want);
    };
    check(json!({}), "0");
    check(json!({"cpu": "0", "example.com/gpu": "0"}), "0");
    check(json!({"cpu": "1.5", "memory": "1536Mi"}), "cpu 1500m, memory 1536Mi");
    check(
        json!({"memory": "24Gi", "ephemeral-storage": "1000"}),
        "memory 24Gi, ephemeral-storage 1000",
    );
    check(json!({"memory": "2Ei", "example.com/gpu": "1024"}), "memory 2Ei, example.com/gpu 1024");
}

#[track_caller]
fn check_metrics(bench: &PluginTestBench, want: &[&str]) {
    let lines = bench.metrics().unwrap();
    let short = |line: &String| {
        line.replace("capacity_scheduling_quota_", "").replace(",profile=\"default-scheduler\"", "")
    };
    let mut lines: Vec<String> = lines.iter().map(short).collect();
    lines.sort();
    assert_eq!(lines, want);
}

#[test]
fn metrics_follow_pods_and_quotas() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    bench.node(node("a")).unwrap();
    assign(&mut bench, "a", of("red", "p1", "500m", 0).request("example.com/gpu", "2"));
    check_metrics(&bench, &[]);
    add_quota(&mut bench, "red", "quota", json!({"min": {"cpu": 1}, "max": {"cpu": 2}}));
    let cpu_and_gpu = [
        r#"max{namespace="red",resource="cpu"} 2"#,
        r#"min{namespace="red",resource="cpu"} 1"#,
        r#"min{namespace="red",resource="example.com/gpu"} 0"#,
        r#"used{namespace="red",resource="cpu"} 0.5"#,
        r#"used{namespace="red",resource="example.com/gpu"} 2"#,
    ];
    check_metrics(&bench, &cpu_and_gpu);
    assign(&mut bench, "a", of("red", "p2", "1", 0));
    assign(&mut bench, "a", of("plain", "p3", "1", 0));
    bench.delete_pod("red/p1");
    // Without `max` nothing is limited.
    add_quota(&mut bench, "red", "quota", json!({"min": {"cpu": 1, "memory": "1Ki"}}));
    check_metrics(
        &bench,
        &[
            r#"min{namespace="red",resource="cpu"} 1"#,
            r#"min{namespace="red",resource="example.com/gpu"} 0"#,
            r#"min{namespace="red",resource="memory"} 1024"#,
            r#"used{namespace="red",resource="cpu"} 1"#,
            r#"used{namespace="red",resource="example.com/gpu"} 0"#,
            r#"used{namespace="red",resource="memory"} 0"#,
        ],
    );
    bench.delete_object(&elastic_quotas(), "red", "quota");
    check_metrics(&bench, &[]);
}

#[test]
fn quotas_without_effect_are_logged_once() {
    let mut bench = PluginTestBench::new(&DEF, json!({})).unwrap();
    let mut check = |name: &str, spec: Value, want: &[&str]| {
        let ((), lines) = collect_log_lines(0, || add_quota(&mut bench, "red", name, spec));
        let lines: Vec<String> = lines.into_iter().map(|line| line.message).collect();
        assert_eq!(lines, want);
    };
    check("b", cpus("1", "2"), &[]);
    let above = "ElasticQuota red/b: min is above max for cpu";
    check("b", cpus("3", "2"), &[above]);
    check("b", cpus("3", "1"), &[]);
    check("b", cpus("1", "1"), &[]);
    check("b", cpus("3", "1"), &[above]);
    check(
        "c",
        cpus("1", "1"),
        &["ElasticQuota red/c has no effect: the ElasticQuota b of this namespace counts"],
    );
    check(
        "a",
        cpus("1", "1"),
        &[
            "ElasticQuota red/b has no effect: the ElasticQuota a of this namespace counts",
            "ElasticQuota red/c has no effect: the ElasticQuota a of this namespace counts",
        ],
    );
}

/// Upstream evicts while nothing else is scheduled, but victims with a grace period still count there: it evicts more and more of them.
#[test]
fn pods_that_are_being_evicted_are_not_needed_twice() {
    let mut bench = bench();
    bench.delete_node("a");
    bench.delete_node("b");
    bench.node(node("c").allocatable("cpu", "6")).unwrap();
    for (name, priority) in [("p1", 9), ("p2", 1), ("p3", 5)] {
        assign(&mut bench, "c", of("red", name, "2", priority));
    }
    let evict = |bench: &mut PluginTestBench, victim: &str, preemptor: &str| {
        bench.world.ongoing_preemptions_mut().add_victim(victim);
        let nominated = Arc::new(bench.parse_pod(of("blue", preemptor, "2", 0)).unwrap());
        bench.world.add_nominated_pod("c".into(), nominated);
    };
    let incoming = |name: &str| of("blue", name, "2", 0);
    check_post_filter(&mut bench, incoming("first"), &expect!["nominates c; evicts p2"]);
    evict(&mut bench, "red/p2", "first");
    check_post_filter(&mut bench, incoming("second"), &expect!["nominates c; evicts p3"]);
    evict(&mut bench, "red/p3", "second");
    // Now `red` is at its minimum, and `blue` will be.
    check_post_filter(
        &mut bench,
        incoming("third"),
        &expect![
            "clears; Unschedulable 0/1 nodes are available: 1 No victims found on node c for preemptor pod third."
        ],
    );
    // It keeps its nomination until the quota is free.
    check_post_filter(
        &mut bench,
        incoming("first"),
        &expect!["Unschedulable not eligible due to pods that are being evicted"],
    );
}
