// Follows pods and nodes with client-go's informers and tells, for each line on standard input, what they believe.
//
// A line of JSON comes out: objects (resource/namespace/name to uid and resource version), the number of notifications, and
// complaints about notifications that contradict those before.
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

type belief struct {
	mutex      sync.Mutex
	objects    map[string]string
	versions   map[string]uint64
	complaints []string
	events     int
}

func (b *belief) complain(format string, args ...any) {
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
}

func accessor(object any) metav1.Object {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	found, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	return found
}

func (b *belief) handlers(resource string) cache.ResourceEventHandlerFuncs {
	key := func(object metav1.Object) string {
		return resource + "/" + object.GetNamespace() + "/" + object.GetName()
	}
	set := func(object metav1.Object) {
		version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		if err != nil {
			b.complain("%s: version %q", key(object), object.GetResourceVersion())
		}
		if known := b.versions[string(object.GetUID())]; version < known {
			b.complain("%s went from version %d to %d", key(object), known, version)
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
				b.complain("%s is added and was there: %s", key(found), known)
			}
			set(found)
		},
		UpdateFunc: func(_, object any) {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.events++
			found := accessor(object)
			if _, ok := b.objects[key(found)]; !ok {
				b.complain("%s is updated and was not there", key(found))
			}
			set(found)
		},
		DeleteFunc: func(object any) {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.events++
			found := accessor(object)
			if _, ok := b.objects[key(found)]; !ok {
				b.complain("%s is deleted and was not there", key(found))
			}
			delete(b.objects, key(found))
		},
	}
}

func (b *belief) tell() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	line, err := json.Marshal(map[string]any{"objects": b.objects, "complaints": b.complaints, "events": b.events})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "where the server is")
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
	all := &belief{objects: map[string]string{}, versions: map[string]uint64{}}
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
		all.tell()
	}
}
