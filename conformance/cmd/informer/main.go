// Command informer watches pods and nodes with client-go's informers. For each line on standard input it prints the state of
// their caches as one line of JSON: objects (resource/namespace/name to uid and resource version), the number of events, and
// errors: events that contradict earlier ones.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

type cacheState struct {
	mutex    sync.Mutex
	objects  map[string]string
	versions map[string]uint64
	errors   []string
	events   int
}

func (b *cacheState) addError(format string, args ...any) {
	b.errors = append(b.errors, fmt.Sprintf(format, args...))
}

func accessor(object any) metav1.Object {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	found, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	return found
}

func (b *cacheState) handlers(resource string) cache.ResourceEventHandlerFuncs {
	key := func(object metav1.Object) string {
		return resource + "/" + object.GetNamespace() + "/" + object.GetName()
	}
	store := func(object metav1.Object) {
		version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		if err != nil {
			b.addError("%s: invalid resource version %q", key(object), object.GetResourceVersion())
		}
		if known := b.versions[string(object.GetUID())]; version < known {
			b.addError("%s went from resource version %d to %d", key(object), known, version)
		}
		b.versions[string(object.GetUID())] = version
		b.objects[key(object)] = string(object.GetUID()) + " " + object.GetResourceVersion()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.events++
			found := accessor(object)
			if known, ok := b.objects[key(found)]; ok {
				b.addError("%s was added but was already in the cache: %s", key(found), known)
			}
			store(found)
		},
		UpdateFunc: func(_, object any) {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.events++
			found := accessor(object)
			if _, ok := b.objects[key(found)]; !ok {
				b.addError("%s was updated but was not in the cache", key(found))
			}
			store(found)
		},
		DeleteFunc: func(object any) {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.events++
			found := accessor(object)
			if _, ok := b.objects[key(found)]; !ok {
				b.addError("%s was deleted but was not in the cache", key(found))
			}
			delete(b.objects, key(found))
		},
	}
}

func (b *cacheState) printState() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	line, err := json.Marshal(map[string]any{"objects": b.objects, "errors": b.errors, "events": b.events})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig file")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	config.UserAgent = "client-go-informer"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	all := &cacheState{objects: map[string]string{}, versions: map[string]uint64{}}
	factory := informers.NewSharedInformerFactory(client, 0)
	for resource, informer := range map[string]cache.SharedIndexInformer{
		"pods":  factory.Core().V1().Pods().Informer(),
		"nodes": factory.Core().V1().Nodes().Informer(),
	} {
		if _, err := informer.AddEventHandler(all.handlers(resource)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	stop := make(chan struct{})
	defer close(stop)
	factory.Start(stop)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		all.printState()
	}
}
