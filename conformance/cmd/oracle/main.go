// Command oracle answers scheduling questions with the plugins, configuration
// scheme and framework of kube-scheduler itself, so that another
// implementation can be compared with them case by case.
//
// It reads one JSON question per line from standard input and writes one JSON
// answer per line to standard output, in the order of the questions. The
// formats are described in the README next to the module file.
//
// conformance/scheduler-plugins is the same program with another version of
// Kubernetes and with the plugins of scheduler-plugins: it shares all files but
// version.go.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"k8s.io/klog/v2"
)

// question has the fields of all kinds of questions.
type question struct {
	ID      json.RawMessage   `json:"id"`
	Ask     string            `json:"ask"`
	Pod     string            `json:"pod"`
	Config  json.RawMessage   `json:"config"`
	Objects []json.RawMessage `json:"objects"`
	// FeatureGates are set while the question is answered.
	FeatureGates map[string]bool `json:"featureGates"`

	Plugin string          `json:"plugin"`
	Event  eventJSON       `json:"event"`
	Old    json.RawMessage `json:"old"`
	New    json.RawMessage `json:"new"`

	Queued []queuedPod `json:"queued"`

	Steps []json.RawMessage `json:"steps"`
	Calls gangCalls         `json:"calls"`

	Values   []json.RawMessage `json:"values"`
	Selector json.RawMessage   `json:"selector"`
	Labels   map[string]string `json:"labels"`
	Node     json.RawMessage   `json:"node"`
}

// gangCalls is how the plugin Coscheduling is called, where that is not as
// kube-scheduler does it.
type gangCalls struct {
	// NoPostFilterAfterPreFilter leaves out PostFilter for a pod that PreFilter rejects.
	NoPostFilterAfterPreFilter bool `json:"noPostFilterAfterPreFilter"`
	// LateUnreserve calls Unreserve for a rejected pod after the next step, as the
	// binding cycle of that pod may.
	LateUnreserve bool `json:"lateUnreserve"`
}

// failure is the answer to a question that could not be answered.
type failure struct {
	ID    json.RawMessage `json:"id"`
	Error string          `json:"error"`
}

var handlers = map[string]func(*question) (any, error){
	"":             explain,
	"explain":      explain,
	"hint":         hint,
	"sign":         sign,
	"preemption":   preempt,
	"order":        order,
	"config":       showConfig,
	"log":          logarithms,
	"quantity":     quantities,
	"selector":     labelSelector,
	"nodeSelector": nodeSelector,
}

func main() {
	workers := flag.Int("workers", 2, "how many questions are processed concurrently")
	verbose := flag.Bool("verbose", false, "write the log of the scheduler to standard error")
	flag.Parse()

	if !*verbose {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	// Every question builds and drops a whole scheduler: less frequent garbage
	// collection is worth more here than a small heap.
	debug.SetGCPercent(300)
	runtime.GOMAXPROCS(max(*workers, 1))
	prepareProcess()

	if err := serve(os.Stdin, os.Stdout, max(*workers, 1)); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

// serve keeps the answers in order by queueing one result channel per question:
// the writer drains the channels in the order in which the lines were read.
func serve(in io.Reader, out io.Writer, workers int) error {
	pending := make(chan chan []byte, workers)
	slots := make(chan struct{}, workers)
	written := make(chan error, 1)

	go func() {
		w := bufio.NewWriterSize(out, 1<<16)
		var err error
		for result := range pending {
			line := <-result
			if err != nil {
				continue
			}
			if _, err = w.Write(line); err == nil {
				// Flush, so that a caller that waits for each answer before it sends
				// the next question does not wait for a full buffer.
				err = w.Flush()
			}
		}
		written <- err
	}()

	r := bufio.NewReaderSize(in, 1<<16)
	var readErr error
	for {
		line, err := r.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			result := make(chan []byte, 1)
			slots <- struct{}{}
			pending <- result
			go func() {
				defer func() { <-slots }()
				result <- answer(line)
			}()
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				readErr = err
			}
			break
		}
	}
	close(pending)
	return errors.Join(readErr, <-written)
}

func answer(line []byte) []byte {
	q := &question{}
	var reply any
	err := json.Unmarshal(line, q)
	if len(q.ID) == 0 {
		q.ID = json.RawMessage("null")
	}
	if err != nil {
		err = fmt.Errorf("reading the question: %w", err)
	} else {
		reply, err = guarded(q)
	}
	if err != nil {
		reply = failure{ID: q.ID, Error: err.Error()}
	}

	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(reply); err != nil {
		buf.Reset()
		_ = enc.Encode(failure{ID: q.ID, Error: "writing the answer: " + err.Error()})
	}
	return buf.Bytes()
}

// guarded turns panics into errors. Those raised in goroutines of the framework
// cannot be recovered here; the panic handler of the process counts them.
func guarded(q *question) (reply any, err error) {
	h, ok := handlers[q.Ask]
	if !ok {
		return nil, fmt.Errorf("unknown question %q", q.Ask)
	}
	defer func() {
		if p := recover(); p != nil {
			klog.Errorf("panic: %v\n%s", p, debug.Stack())
			reply, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	restore, err := setFeatureGates(q.FeatureGates)
	if err != nil {
		return nil, err
	}
	defer restore()
	before := backgroundPanics.count()
	reply, err = h(q)
	if text, after := backgroundPanics.last(); after != before {
		return nil, errors.New("panic: " + text)
	}
	return reply, err
}
