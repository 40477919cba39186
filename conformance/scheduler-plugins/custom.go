package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// The plugins read their custom resources with a client of their own. It gets a
// server on loopback that serves, under a path for each question, discovery, lists and
// watches.

const customGroup, customVersion = "scheduling.x-k8s.io", "v1alpha1"

// customKinds are the resources of the kinds that plugins watch.
var customKinds = map[string]string{"ElasticQuota": "elasticquotas", "PodGroup": "podgroups"}

var customServer = sync.OnceValue(func() *httptest.Server { return httptest.NewServer(http.HandlerFunc(serveCustom)) })

var customObjects struct {
	sync.Mutex
	next int
	// byQuestion has the objects of the questions that are being answered, by kind.
	byQuestion map[string]map[string][]json.RawMessage
}

func isCustom(raw json.RawMessage) bool {
	var head metav1.TypeMeta
	return json.Unmarshal(raw, &head) == nil && strings.HasPrefix(head.APIVersion, customGroup+"/")
}

// serveCustomObjects returns the configuration of a client that sees the custom
// objects of the question, until the question is answered.
func (w *world) serveCustomObjects() *rest.Config {
	byKind := make(map[string][]json.RawMessage)
	for _, raw := range w.custom {
		var object struct {
			metav1.TypeMeta `json:",inline"`
		}
		if json.Unmarshal(raw, &object) == nil {
			byKind[object.Kind] = append(byKind[object.Kind], raw)
		}
	}
	all := &customObjects
	all.Lock()
	defer all.Unlock()
	if all.byQuestion == nil {
		all.byQuestion = make(map[string]map[string][]json.RawMessage)
	}
	all.next++
	id := fmt.Sprint(all.next)
	all.byQuestion[id] = byKind
	go func() {
		<-w.ctx.Done()
		all.Lock()
		defer all.Unlock()
		delete(all.byQuestion, id)
	}()
	return &rest.Config{Host: customServer().URL + "/" + id, QPS: -1}
}

// beforeInformers gives the plugins time to handle their custom objects: they are told
// of pods at the same time otherwise, and share a map without a lock.
func (w *world) beforeInformers() { time.Sleep(20 * time.Millisecond) }

func serveCustom(out http.ResponseWriter, request *http.Request) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	customObjects.Lock()
	byKind := customObjects.byQuestion[parts[0]]
	customObjects.Unlock()
	version := customGroup + "/" + customVersion
	var reply any
	switch path := strings.Join(parts[1:], "/"); path {
	case "api":
		reply = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "apis":
		found := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: customVersion}
		group := metav1.APIGroup{Name: customGroup, Versions: []metav1.GroupVersionForDiscovery{found}, PreferredVersion: found}
		reply = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}}
	case "api/v1":
		reply = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1"}
	case "apis/" + version:
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
		for kind, resource := range customKinds {
			verbs := metav1.Verbs{"get", "list", "watch"}
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Namespaced: true, Kind: kind, Verbs: verbs})
		}
		reply = list
	default:
		for kind, resource := range customKinds {
			if path != "apis/"+version+"/"+resource {
				continue
			}
			if request.URL.Query().Get("watch") != "" {
				serveWatch(out, request, kind, byKind[kind])
				return
			}
			items := byKind[kind]
			if items == nil {
				items = []json.RawMessage{}
			}
			reply = map[string]any{"apiVersion": version, "kind": kind + "List", "metadata": map[string]string{"resourceVersion": "1"}, "items": items}
		}
	}
	if reply == nil {
		http.NotFound(out, request)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(reply)
}

// serveWatch sends the objects first if the client asks for them, and nothing after.
func serveWatch(out http.ResponseWriter, request *http.Request, kind string, objects []json.RawMessage) {
	out.Header().Set("Content-Type", "application/json")
	events := json.NewEncoder(out)
	if request.URL.Query().Get("sendInitialEvents") == "true" {
		for _, object := range objects {
			_ = events.Encode(metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: object}})
		}
		end := metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{Kind: kind, APIVersion: customGroup + "/" + customVersion},
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: "1",
				Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		}
		_ = events.Encode(metav1.WatchEvent{Type: "BOOKMARK", Object: runtime.RawExtension{Object: &end}})
	}
	out.(http.Flusher).Flush()
	<-request.Context().Done()
}
