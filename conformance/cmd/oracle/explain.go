package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// statusJSON is a framework status in the form that is compared.
type statusJSON struct {
	Code    string   `json:"code"`
	Plugin  string   `json:"plugin,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
}

type nodeJSON struct {
	Name   string           `json:"name"`
	Filter statusJSON       `json:"filter"`
	Scores map[string]int64 `json:"scores,omitempty"`
	Total  *int64           `json:"total,omitempty"`
}

type explanation struct {
	ID         json.RawMessage `json:"id"`
	Pod        string          `json:"pod"`
	Profile    string          `json:"profile"`
	PreEnqueue *statusJSON     `json:"preEnqueue,omitempty"`
	PreFilter  *statusJSON     `json:"preFilter,omitempty"`
	Nodes      []nodeJSON      `json:"nodes"`
	Best       []string        `json:"best"`
	Message    string          `json:"message"`
	ScoreError string          `json:"scoreError,omitempty"`
}

// narrowedAway is not a code of the framework: upstream keeps no status for a
// node that a PreFilter plugin excluded.
const narrowedAway = "PreFilterResult"

func toJSON(s *fwk.Status) statusJSON {
	if s == nil {
		return statusJSON{Code: fwk.Success.String()}
	}
	return statusJSON{Code: s.Code().String(), Plugin: s.Plugin(), Reasons: s.Reasons()}
}

func explain(q *question) (any, error) {
	w, fw, err := buildForPod(q)
	if err != nil {
		return nil, err
	}
	defer w.close()

	e := &explanation{
		ID:      q.ID,
		Pod:     nameOf(w.pod).String(),
		Profile: fw.ProfileName(),
		Nodes:   make([]nodeJSON, len(w.nodes)),
		Best:    []string{},
	}
	for i, n := range w.nodes {
		e.Nodes[i].Name = n.Name
	}
	for _, pl := range fw.PreEnqueuePlugins() {
		if s := pl.PreEnqueue(w.ctx, w.pod); !s.IsSuccess() {
			status := toJSON(s.WithPlugin(pl.Name()))
			e.PreEnqueue = &status
			break
		}
	}

	if len(w.nodes) > 0 {
		feasible, state, failed := w.filter(fw, e)
		if failed {
			return e, nil
		}
		if len(feasible) > 0 {
			return e, w.score(fw, state, feasible, e)
		}
	}
	// No node is feasible: take the message of the real scheduling cycle. It also
	// contains what the statuses above lack (for example about a nominated node).
	err = w.schedulePod(fw, framework.NewCycleState(), w.pod)
	if err == nil && w.pod.Status.NominatedNodeName != "" {
		// A nominated node is tried without PreFilter's result. The statuses above are about all other attempts.
		pod := w.pod.DeepCopy()
		pod.Status.NominatedNodeName = ""
		err = w.schedulePod(fw, framework.NewCycleState(), pod)
	}
	if err == nil {
		return nil, fmt.Errorf("no node passed the filters, but the scheduling cycle found one")
	}
	e.Message = err.Error()
	return e, nil
}

// filter evaluates every node, without the sampling of a real cycle. The last
// result is true if a plugin failed (not rejected), which ends a real cycle.
func (w *world) filter(fw framework.Framework, e *explanation) (map[string]fwk.NodeInfo, fwk.CycleState, bool) {
	state := framework.NewCycleState()
	pre, status, plugins := fw.RunPreFilterPlugins(w.ctx, state, w.pod)
	if !status.IsSuccess() {
		s := toJSON(status)
		e.PreFilter = &s
		for i := range e.Nodes {
			e.Nodes[i].Filter = s
		}
		if !status.IsRejected() {
			e.Message = status.AsError().Error()
			return nil, state, true
		}
		return nil, state, false
	}

	failed := false
	feasible := make(map[string]fwk.NodeInfo)
	for i := range e.Nodes {
		n := &e.Nodes[i]
		if !pre.AllNodes() && !pre.NodeNames.Has(n.Name) {
			n.Filter = statusJSON{
				Code:    narrowedAway,
				Reasons: []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(plugins))},
			}
			continue
		}
		info, err := fw.SnapshotSharedLister().NodeInfos().Get(n.Name)
		if err != nil {
			n.Filter = toJSON(fwk.AsStatus(err))
			failed = true
			continue
		}
		status := fw.RunFilterPluginsWithNominatedPods(w.ctx, state, w.pod, info)
		n.Filter = toJSON(status)
		switch {
		case status.IsSuccess():
			feasible[n.Name] = info
		case !status.IsRejected():
			if !failed {
				e.Message = status.AsError().Error()
			}
			failed = true
		}
	}
	return feasible, state, failed
}

func (w *world) score(fw framework.Framework, state fwk.CycleState, feasible map[string]fwk.NodeInfo, e *explanation) error {
	infos := make([]fwk.NodeInfo, 0, len(feasible))
	where := make(map[string]*nodeJSON, len(feasible))
	for i := range e.Nodes {
		if info, ok := feasible[e.Nodes[i].Name]; ok {
			infos = append(infos, info)
			where[e.Nodes[i].Name] = &e.Nodes[i]
		}
	}

	var scores []fwk.NodePluginScores
	if !fw.HasScorePlugins() {
		for _, info := range infos {
			scores = append(scores, fwk.NodePluginScores{Name: info.Node().Name, TotalScore: 1})
		}
	} else {
		status := fw.RunPreScorePlugins(w.ctx, state, w.pod, infos)
		if status.IsSuccess() {
			scores, status = fw.RunScorePlugins(w.ctx, state, w.pod, infos)
		}
		if !status.IsSuccess() {
			e.ScoreError = status.AsError().Error()
			// A real cycle does not score a single feasible node and so never gets here.
			if len(infos) > 1 {
				e.Message = e.ScoreError
			}
			return nil
		}
	}

	best := scores[0].TotalScore
	for _, s := range scores {
		n, total := where[s.Name], s.TotalScore
		n.Total = &total
		n.Scores = make(map[string]int64, len(s.Scores))
		for _, p := range s.Scores {
			n.Scores[p.Name] = p.Score
		}
		if total > best {
			best, e.Best = total, e.Best[:0]
		}
		if total == best {
			e.Best = append(e.Best, s.Name)
		}
	}
	slices.Sort(e.Best)
	return nil
}
