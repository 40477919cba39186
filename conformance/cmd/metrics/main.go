// Command metrics prints every metric of kube-scheduler once, without values: names, help, labels,
// buckets. Its output is recorded in crates/daemon/tests/metrics.txt:
//
//	go run ./cmd/metrics > ../crates/daemon/tests/metrics.txt
package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
	_ "k8s.io/kubernetes/pkg/features"
	volumemetrics "k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding/metrics"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

const (
	profile = "default-scheduler"
	plugin  = "NodeName"
)

func main() {
	runtime.Must(utilfeature.DefaultMutableFeatureGate.Set("SchedulerAsyncAPICalls=true,GenericWorkload=true"))
	metrics.Register()
	scheduler()
	shared()
	recorder := httptest.NewRecorder()
	legacyregistry.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range strings.Split(recorder.Body.String(), "\n") {
		if name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "); !ours(name) {
			continue
		}
		if !strings.HasPrefix(line, "#") {
			line = line[:strings.LastIndex(line, " ")]
		}
		fmt.Fprintln(os.Stdout, line)
	}
}

// ours returns whether Loadmaster has the family; the Go runtime and API servers have more.
func ours(name string) bool {
	for _, prefix := range []string{"scheduler_", "rest_client_", "workqueue_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func scheduler() {
	metrics.PodScheduled(profile, 0)
	metrics.PodGroupScheduled(profile, 0)
	metrics.PodGroupSchedulingAlgorithmLatency.Observe(0)
	metrics.SchedulingAlgorithmLatency.Observe(0)
	metrics.PodSchedulingSLIDuration.WithLabelValues("1").Observe(0)
	metrics.PodSchedulingAttempts.Observe(0)
	metrics.PodScheduledAfterFlush.Inc()
	metrics.FrameworkExtensionPointDuration.WithLabelValues("Filter", "Success", profile).Observe(0)
	metrics.PluginExecutionDuration.WithLabelValues(plugin, "Filter", "Success").Observe(0)
	metrics.PluginEvaluationTotal.WithLabelValues(plugin, "Filter", profile).Inc()
	metrics.SchedulerQueueIncomingPods.WithLabelValues("active", "PodAdd").Inc()
	metrics.NewActivePodsRecorder().Inc()
	metrics.UnschedulableReason(plugin, profile).Inc()
	metrics.EventHandlingLatency.WithLabelValues("PodAdd").Observe(0)
	stop := make(chan struct{})
	hints := metrics.NewMetricsAsyncRecorder(10, 10*time.Millisecond, stop)
	hints.ObserveQueueingHintDurationAsync(plugin, "PodAdd", "Queue", 0)
	time.Sleep(200 * time.Millisecond)
	close(stop)
	metrics.InFlightEvents.WithLabelValues("PodAdd").Inc()
	metrics.PermitWaitDuration.WithLabelValues("Success").Observe(0)
	metrics.Goroutines.WithLabelValues("binding").Inc()
	metrics.CacheSize.WithLabelValues("nodes").Set(0)
	metrics.PreemptionAttempts.Inc()
	metrics.PreemptionVictims.Observe(0)
	metrics.PreemptionGoroutinesDuration.WithLabelValues("success").Observe(0)
	metrics.PreemptionGoroutinesExecutionTotal.WithLabelValues("success").Inc()
	metrics.BatchAttemptStats.WithLabelValues(profile, "no_hint").Inc()
	metrics.BatchCacheFlushed.WithLabelValues(profile, "expired").Inc()
	metrics.GetNodeHintDuration.WithLabelValues("hint", profile).Observe(0)
	metrics.StoreScheduleResultsDuration.WithLabelValues(profile).Observe(0)
	metrics.AsyncAPICallsTotal.WithLabelValues("pod_binding", "success").Inc()
	metrics.AsyncAPICallDuration.WithLabelValues("pod_binding", "success").Observe(0)
	metrics.AsyncAPIPendingCalls.WithLabelValues("pod_binding").Inc()
	metrics.ResourceClaimCreatesTotal.WithLabelValues("success").Inc()
	metrics.DRABindingConditionsAllocationsTotal.WithLabelValues(profile, "driver", "success").Inc()
	metrics.DRABindingConditionsPreBindDuration.WithLabelValues(profile, "driver", "success").Observe(0)
	volumemetrics.VolumeBindingRequestSchedulerBinderCache.WithLabelValues("add").Inc()
	volumemetrics.VolumeSchedulingStageFailed.WithLabelValues("bind").Inc()
}

func shared() {
	ctx := context.Background()
	url := url.URL{Host: "host"}
	clientmetrics.RequestLatency.Observe(ctx, "GET", url, 0)
	clientmetrics.RequestResult.Increment(ctx, "200", "GET", "host")
	clientmetrics.RequestRetry.IncrementRetry(ctx, "500", "GET", "host")
	clientmetrics.RequestSize.Observe(ctx, "GET", "host", 0)
	clientmetrics.ResponseSize.Observe(ctx, "GET", "host", 0)
	clientmetrics.RateLimiterLatency.Observe(ctx, "GET", url, 0)
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.DefaultTypedControllerRateLimiter[int](),
		workqueue.TypedRateLimitingQueueConfig[int]{Name: "queue"},
	)
	queue.AddRateLimited(1)
	item, _ := queue.Get()
	queue.Done(item)
}
