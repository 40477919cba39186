package main

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// gatesLock keeps questions with feature gates apart from all others: the gates
// belong to the whole process.
var gatesLock sync.RWMutex

// setFeatureGates sets these gates until the returned function is called. A gate
// that this version does not know yet is off.
func setFeatureGates(wanted map[string]bool) (restore func(), err error) {
	if len(wanted) == 0 {
		gatesLock.RLock()
		return gatesLock.RUnlock, nil
	}
	gatesLock.Lock()
	gates := utilfeature.DefaultMutableFeatureGate
	before := make(map[string]bool, len(wanted))
	changed := make(map[string]bool, len(wanted))
	known := sets.KeySet(gates.GetAll())
	for name, enabled := range wanted {
		feature := featuregate.Feature(name)
		if known.Has(feature) {
			before[name] = gates.Enabled(feature)
			changed[name] = enabled
		} else if enabled {
			gatesLock.Unlock()
			return nil, fmt.Errorf("unknown feature gate %q", name)
		}
	}
	restore = func() {
		if err := gates.SetFromMap(before); err != nil {
			panic(err)
		}
		gatesLock.Unlock()
	}
	if err := gates.SetFromMap(changed); err != nil {
		restore()
		return nil, err
	}
	return restore, nil
}
