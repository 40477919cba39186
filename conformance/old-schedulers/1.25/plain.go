package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plain makes a JSON value of an internal type of the configuration, whose
// fields have no names for JSON: they get those of the versioned types.
func plain(value any) any {
	return plainValue(reflect.ValueOf(value))
}

func plainValue(value reflect.Value) any {
	if !value.IsValid() {
		return nil
	}
	switch it := value.Interface().(type) {
	case json.Marshaler, encoding.TextMarshaler:
		return marshalled(it)
	case time.Duration:
		return it.String()
	}
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		return plainValue(value.Elem())
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			return marshalled(value.Interface())
		}
		list := make([]any, 0, value.Len())
		for i := 0; i < value.Len(); i++ {
			list = append(list, plainValue(value.Index(i)))
		}
		return list
	case reflect.Struct:
		object := map[string]any{}
		plainFields(value, object)
		return object
	default:
		return marshalled(value.Interface())
	}
}

func plainFields(value reflect.Value, object map[string]any) {
	for i := 0; i < value.NumField(); i++ {
		field := value.Type().Field(i)
		if _, isTypeMeta := value.Field(i).Interface().(metav1.TypeMeta); isTypeMeta {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous && field.Type.Kind() == reflect.Struct {
			plainFields(value.Field(i), object)
			continue
		}
		if name == "" {
			name = lowerCamel(field.Name)
		}
		object[name] = plainValue(value.Field(i))
	}
}

// lowerCamel is the JSON name of a field: URLPrefix is urlPrefix, EnableHTTPS is enableHTTPS.
func lowerCamel(name string) string {
	letters := []rune(name)
	for i := range letters {
		if i > 0 && (!unicode.IsUpper(letters[i]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			break
		}
		letters[i] = unicode.ToLower(letters[i])
	}
	return string(letters)
}

func marshalled(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("%T: %v", value, err))
	}
	var result any
	if err := json.Unmarshal(text, &result); err != nil {
		panic(fmt.Sprintf("%T: %v", value, err))
	}
	return result
}
